/* What a program's file says: whether the kernel can run it, and whether the library of interpose.c would harm it.

   Reads the file's head and no more. Allocates nothing: it is called between vfork and exec. */

#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "program_file.h"

extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden"))); /* this library's own */

static int is_sanitizer(const char *library)
{
	static const char *const known[] = { "libasan.", "libhwasan.", "liblsan.", "libtsan.", "libclang_rt." };

	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strncmp(library, known[i], strlen(known[i])) == 0)
			return 1;
	return 0;
}

/* Where an address of the program is in its file; 0 if nowhere. */
static off_t offset_of(const ElfW(Phdr) *parts, size_t count, ElfW(Addr) address)
{
	for (size_t i = 0; i < count; i++)
		if (parts[i].p_type == PT_LOAD && address >= parts[i].p_vaddr &&
		    address - parts[i].p_vaddr < parts[i].p_filesz)
			return (off_t)(address - parts[i].p_vaddr + parts[i].p_offset);
	return 0;
}

static int needs_sanitizer(int file, const ElfW(Phdr) *parts, size_t count)
{
	ElfW(Dyn) entries[128];
	const ElfW(Phdr) *dynamic = NULL;
	ElfW(Addr) names = 0;
	ssize_t size;
	off_t start;
	char name[32];

	for (size_t i = 0; i < count; i++)
		if (parts[i].p_type == PT_DYNAMIC)
			dynamic = &parts[i];
	if (!dynamic)
		return 0;
	size = pread(file, entries, sizeof entries, (off_t)dynamic->p_offset);
	for (ssize_t i = 0; i < size / (ssize_t)sizeof entries[0]; i++)
		if (entries[i].d_tag == DT_STRTAB)
			names = entries[i].d_un.d_ptr;
	start = offset_of(parts, count, names);
	for (ssize_t i = 0; start && i < size / (ssize_t)sizeof entries[0] && entries[i].d_tag != DT_NULL; i++) {
		if (entries[i].d_tag != DT_NEEDED)
			continue;
		size_t length = (size_t)pread(file, name, sizeof name - 1, start + (off_t)entries[i].d_un.d_val);

		if (length < sizeof name) {
			name[length] = 0;
			if (is_sanitizer(name))
				return 1;
		}
	}
	return 0;
}

static int is_elf(const void *head, ssize_t size)
{
	return size >= (ssize_t)sizeof(ElfW(Ehdr)) && memcmp(head, ELFMAG, SELFMAG) == 0;
}

/* Whether a program is one for this library's architecture. */
static int is_own(const ElfW(Ehdr) * head)
{
	return head->e_ident[EI_CLASS] == __ehdr_start.e_ident[EI_CLASS] && head->e_machine == __ehdr_start.e_machine;
}

/* Whether the kernel can run this file: a program of this architecture, or a script with its interpreter. */
int is_program(const char *path)
{
	union {
		ElfW(Ehdr) head;
		char text[257];
	} start;
	char *interpreter = start.text + 2;
	ssize_t size;
	int file = access(path, X_OK) == 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;

	if (file < 0)
		return 0;
	size = pread(file, start.text, sizeof start.text - 1, 0);
	close(file);
	if (is_elf(&start, size))
		return is_own(&start.head);
	if (size < 3 || start.text[0] != '#' || start.text[1] != '!')
		return 0;
	start.text[size] = 0;
	interpreter += strspn(interpreter, " \t");
	interpreter[strcspn(interpreter, " \t\r\n")] = 0;
	return access(interpreter, X_OK) == 0;
}

/* Whether a program must be loaded without this library. */
int is_harmed(const char *path)
{
	ElfW(Ehdr) head;
	ElfW(Phdr) parts[32];
	ssize_t size;
	int harmed = 0, file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (file < 0)
		return 0;
	if (is_elf(&head, pread(file, &head, sizeof head, 0))) {
		if (!is_own(&head) || head.e_phentsize != sizeof parts[0]) {
			harmed = 1;
		} else {
			size = pread(file, parts, sizeof parts, (off_t)head.e_phoff);
			if (size > 0) {
				size /= (ssize_t)sizeof parts[0];
				harmed = needs_sanitizer(file, parts, size < head.e_phnum ? (size_t)size : head.e_phnum);
			}
		}
	}
	close(file);
	return harmed;
}
