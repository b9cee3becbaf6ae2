// Measures generated GEMMs and convolutions: checks the results of a kernel, times it, and prints one line of JSON.
//
//   measure LIBRARY SYMBOL M N K DTYPE OUTPUT LAYOUT EPILOGUE TOLERANCE
//           A batched GEMM has BATCHxM for M. A convolution has NxHxWxC for M, its filters for N, RxS for K, and for
//           LAYOUT "conv2d:" with six numbers, joined by commas: two each for stride, padding and dilation.
//           TOLERANCE,COUNT for TOLERANCE: the LIBRARY and SYMBOL of COUNT rivals follow. They are timed in turns with
//           the kernel, with the same memory and clock. "rivals_us" has their times; their results are not checked.
//   measure        reads the same words from standard input, for one kernel after another; a zero byte ends each word
//
// The program prepares everything that needs no GPU, prints "ready", and waits for a line with BEST_US. Until that line
// comes, another process may measure. A process for several kernels prints its first "ready" before it makes a context:
// it waits for any line, and prints "started" after it. It ends at the first kernel that does not work. After a kernel
// that works, the GPU still holds the context and at most 1 GiB for the next kernel.
// A standalone test of a target has the same text with MEASURE_WITHOUT_MAIN, and a main of its own.
// Knows the interface of generated kernels, not its caller. The GPU is device 0: the caller shows only one GPU.
// Each timed run is between two events, after a write to more memory than the L2 cache holds. If the cache could hold all
// of a problem, the kernel is so short that two events cannot time one launch. Then there are more copies of the
// operands than the cache holds. A run launches the kernel once for each copy, and its time is the mean of the launches.
// A candidate whose short run takes over 1.5 times BEST_US (0: not known) is not timed in full.
// Inputs are small fractions that every type holds exactly. alpha keeps results near 1, so that the errors of all types
// have that scale. (A convolution has no alpha: a power of two scales its weights.)
#ifdef __HIP__
#include <hip/hip_bfloat16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#endif
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#ifdef __HIP__
// The same text serves AMD's GPUs: these functions have the same arguments there.
#define cudaDevAttrL2CacheSize hipDeviceAttributeL2CacheSize
#define cudaDeviceGetAttribute hipDeviceGetAttribute
#define cudaError_t hipError_t
#define cudaEventCreate hipEventCreate
#define cudaEventDestroy (void)hipEventDestroy
#define cudaEventElapsedTime hipEventElapsedTime
#define cudaEventRecord hipEventRecord
#define cudaEventSynchronize hipEventSynchronize
#define cudaEvent_t hipEvent_t
#define cudaFree hipFree
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError (void)hipGetLastError
#define cudaMalloc hipMalloc
#define cudaMemcpy hipMemcpy
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaMemset hipMemset
#define cudaMemsetAsync hipMemsetAsync
#define cudaSetDevice hipSetDevice
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStream_t hipStream_t
#define cudaSuccess hipSuccess
#define __bfloat162float static_cast<float>
#define __float2bfloat16 hip_bfloat16
using __nv_bfloat16 = hip_bfloat16;
constexpr const char* kNoGpu = "no AMD GPU";
#else
constexpr const char* kNoGpu = "no GPU";
#endif

namespace {

constexpr int kPeriod = 4099;  // prime: rows differ
constexpr int kWarmUp = 3, kShort = 5, kLeast = 20, kMost = 100, kSamples = 512, kCopies = 64, kTurns = 40;
constexpr double kHopeless = 1.5, kEnoughMs = 60.0;

using Run = int (*)(const void*, const void*, const void*, void*, int, int, int, float, float, void*, cudaStream_t);
using Workspace = size_t (*)(int, int, int);
// Many problems of one size, one after another in memory.
using BatchedRun =
    int (*)(const void*, const void*, const void*, void*, int, int, int, int, float, float, void*, cudaStream_t);
using BatchedWorkspace = size_t (*)(int, int, int, int);
// Takes x, weight, the bias if there is one, and y; then the sizes of x, the sizes of the weight without its channels, and
// y's height and width.
using Size = long long;
using ConvRun = int (*)(const void*, const void*, void*, Size, Size, Size, Size, Size, Size, Size, Size, Size, cudaStream_t);
using ConvBiasRun = int (*)(const void*, const void*, const void*, void*, Size, Size, Size, Size, Size, Size, Size, Size, Size,
                            cudaStream_t);

[[noreturn]] void say(const char* outcome, const std::string& note) {
    std::string clean;
    for (char c : note) clean += (c == '"' || c == '\\' || c < ' ') ? ' ' : c;
    std::printf("{\"outcome\": \"%s\", \"note\": \"%s\"}\n", outcome, clean.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

// A failure here is the machine's: the candidate has not run yet.
void needed(cudaError_t status, const char* what) {
    if (status != cudaSuccess) say("gpu", std::string(what) + ": " + cudaGetErrorString(status));
}

void worked(cudaError_t status, const char* what) {
    if (status != cudaSuccess) say("crashed", std::string(what) + ": " + cudaGetErrorString(status));
}

bool is_fp8(const std::string& type) { return type.rfind("fp8", 0) == 0; }

int bytes_of(const std::string& type) {
    return type == "int8" || is_fp8(type) ? 1 : (type == "fp16" || type == "bf16") ? 2 : 4;
}

void store(const std::string& type, double value, char* there) {
    if (type == "int8") {
        *reinterpret_cast<int8_t*>(there) = static_cast<int8_t>(value);
    } else if (type == "fp16") {
        *reinterpret_cast<__half*>(there) = __float2half(static_cast<float>(value));
    } else if (type == "bf16") {
        *reinterpret_cast<__nv_bfloat16*>(there) = __float2bfloat16(static_cast<float>(value));
#ifndef __HIP__  // kernels for AMD's GPUs have no such type
    } else if (is_fp8(type)) {
        const auto kind = type == "fp8_e4m3" ? __NV_E4M3 : __NV_E5M2;
        *reinterpret_cast<__nv_fp8_storage_t*>(there) = __nv_cvt_double_to_fp8(value, __NV_SATFINITE, kind);
#endif
    } else if (type == "int32") {
        *reinterpret_cast<int32_t*>(there) = static_cast<int32_t>(value);
    } else {
        *reinterpret_cast<float*>(there) = static_cast<float>(value);
    }
}

double load(const std::string& type, const char* there) {
    if (type == "fp16") return __half2float(*reinterpret_cast<const __half*>(there));
    if (type == "bf16") return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(there));
    if (type == "int32") return *reinterpret_cast<const int32_t*>(there);
    return *reinterpret_cast<const float*>(there);
}

// All GPU memory of a candidate, in one block that the next candidate uses again. Each allocation is slow, and waits
// while another process gets a context on any GPU. A large block is not kept.
struct Block {
    static constexpr size_t kFirst = 512 << 20, kMost = 1 << 30, kApart = 2 << 20;
    char* begin = nullptr;
    size_t size = 0, taken = 0;

    static size_t whole(size_t bytes) { return (bytes + kApart - 1) / kApart * kApart; }

    cudaError_t reserve(size_t bytes) {
        taken = 0;
        if (bytes <= size) return cudaSuccess;
        release();
        const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(&begin), bytes);
        if (status == cudaSuccess) size = bytes;
        return status;
    }

    void* take(size_t bytes) {
        void* const found = begin + taken;
        taken += whole(bytes);
        return found;
    }

    void release() {
        if (begin != nullptr) (void)cudaFree(begin);
        begin = nullptr, size = 0;
    }
};
Block block;

// Numbers that repeat with a period: element e is pool[e % kPeriod].
struct Operand {
    std::vector<double> pool;
    std::vector<char> period;
    size_t bytes;
    char* device = nullptr;

    Operand(const std::string& type, size_t count, unsigned seed, double scale = 1.0)
        : period(static_cast<size_t>(kPeriod) * bytes_of(type)), bytes(count * bytes_of(type)) {
        uint64_t state = seed;
        for (int i = 0; i < kPeriod; ++i) {
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
            const int draw = static_cast<int>((state >> 33) % 257) - 128;
            // int32 is the type of an int8 kernel's bias. The smaller fp8 mantissa, of e5m2, holds three significant bits.
            const bool whole = type == "int8" || type == "int32";
            pool.push_back(scale * (whole ? draw % 4 : is_fp8(type) ? draw % 8 / 8.0 : draw / 128.0));
            store(type, pool.back(), &period[static_cast<size_t>(i) * bytes_of(type)]);
        }
    }

    // Each copy begins at an address that is aligned for every type.
    size_t apart() const { return (bytes + 255) / 256 * 256; }

    const void* copy(int number) const { return device + number * apart(); }

    // Copies one period from the host, and the rest on the device: copies over the bus are slow.
    void upload(int copies = 1) {
        const size_t whole = copies * apart();
        device = static_cast<char*>(block.take(whole));
        size_t there = std::min(period.size(), bytes);
        needed(cudaMemcpy(device, period.data(), there, cudaMemcpyHostToDevice), "copying the operands");
        while (there < bytes) {
            const size_t more = std::min(there, bytes - there);
            needed(cudaMemcpy(device + there, device, more, cudaMemcpyDeviceToDevice), "copying the operands");
            there += more;
        }
        for (there = apart(); there < whole;) {
            const size_t more = std::min(there, whole - there);
            needed(cudaMemcpy(device + there, device, more, cudaMemcpyDeviceToDevice), "copying the operands");
            there += more;
        }
    }

    double at(size_t element) const { return pool[element % kPeriod]; }
};

// The sum of the products of `count` elements of a and b, which lie step_i and step_j apart.
double dot(const Operand& a, size_t i, size_t step_i, const Operand& b, size_t j, size_t step_j, int count) {
    i %= kPeriod, j %= kPeriod, step_i %= kPeriod, step_j %= kPeriod;
    double sum = 0.0;
    if (step_i == 1 && step_j == 1) {  // no test for each element: the GPU waits
        double sums[4] = {};
        while (count > 0) {
            const int there = std::min({count, kPeriod - static_cast<int>(i), kPeriod - static_cast<int>(j)});
            const double *const left = &a.pool[i], *const right = &b.pool[j];
            for (int p = 0; p + 4 <= there; p += 4) {
                for (int lane = 0; lane < 4; ++lane) sums[lane] += left[p + lane] * right[p + lane];
            }
            for (int p = there / 4 * 4; p < there; ++p) sums[0] += left[p] * right[p];
            count -= there, i = (i + there) % kPeriod, j = (j + there) % kPeriod;
        }
        return sums[0] + sums[1] + sums[2] + sums[3];
    }
    for (int p = 0; p < count; ++p) {
        sum += a.pool[i] * b.pool[j];
        i += step_i, j += step_j;
        if (i >= kPeriod) i -= kPeriod;
        if (j >= kPeriod) j -= kPeriod;
    }
    return sum;
}

// Returns the index of the first NaN among `count` elements, or `count` if there is none. Compares bits, and first asks
// of each block only whether it has a NaN: it looks at millions of elements while the GPU waits.
template <typename Bits>
size_t first_nan(const char* result, size_t count, Bits infinity) {
    const Bits magnitude = static_cast<Bits>(~Bits{0}) >> 1;
    const auto is_odd = [=](size_t i) {
        Bits bits;
        std::memcpy(&bits, result + i * sizeof(Bits), sizeof bits);
        return (bits & magnitude) > infinity;
    };
    constexpr size_t kBlock = 4096;
    for (size_t block = 0; block < count; block += kBlock) {
        const size_t end = std::min(block + kBlock, count);
        Bits any = 0;
        for (size_t i = block; i < end; ++i) any |= static_cast<Bits>(is_odd(i));
        for (size_t i = block; any != 0 && i < end; ++i) {
            if (is_odd(i)) return i;
        }
    }
    return count;
}

double activated(const std::string& epilogue, double x) {
    if (epilogue.find("relu") != std::string::npos) return std::max(x, 0.0);
    if (epilogue.find("gelu") != std::string::npos) return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    if (epilogue.find("silu") != std::string::npos) return x / (1.0 + std::exp(-x));
    if (epilogue.find("sigmoid") != std::string::npos) return 1.0 / (1.0 + std::exp(-x));
    if (epilogue.find("tanh") != std::string::npos) return std::tanh(x);
    return x;
}

double quantile(std::vector<float> times, double share) {
    std::sort(times.begin(), times.end());
    return times[std::min(times.size() - 1, static_cast<size_t>(share * static_cast<double>(times.size())))];
}

struct Conv {
    Size n = 0, h = 0, w = 0, c = 0, r = 1, s = 1;  // n = 0: not a convolution
    int stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};

    Size results(int axis) const {
        const Size reach = dilation[axis] * ((axis == 0 ? r : s) - 1) + 1;
        return ((axis == 0 ? h : w) + 2 * padding[axis] - reach) / stride[axis] + 1;
    }
};

struct Problem {
    int m, n, k;
    std::string type, output, layout, epilogue;
    double tolerance;
    int batch = 0;  // 0: the GEMM is not batched
    Conv conv = {};
    std::string words = {};  // the words of the question that hold all of this
};

struct Candidate {
    Run run;
    Workspace workspace_bytes;
    BatchedRun batched_run = nullptr;
    BatchedWorkspace batched_workspace_bytes = nullptr;
    void* conv_run = nullptr;  // ConvRun, or ConvBiasRun
};

// One result of a convolution before bias and activation, for row `i` of its implicit GEMM and for a filter.
double convolved(const Conv& conv, const Operand& x, const Operand& weight, size_t i, size_t filter) {
    const Size q = static_cast<Size>(i) % conv.results(1), above = static_cast<Size>(i) / conv.results(1);
    const Size p = above % conv.results(0), image = above / conv.results(0);
    double sum = 0.0;
    for (Size r = 0; r < conv.r; ++r) {
        for (Size s = 0; s < conv.s; ++s) {
            const Size row = p * conv.stride[0] - conv.padding[0] + r * conv.dilation[0];
            const Size column = q * conv.stride[1] - conv.padding[1] + s * conv.dilation[1];
            if (row < 0 || row >= conv.h || column < 0 || column >= conv.w) continue;
            for (Size c = 0; c < conv.c; ++c) {
                sum += x.at(((image * conv.h + row) * conv.w + column) * conv.c + c) *
                       weight.at(((filter * conv.r + r) * conv.s + s) * conv.c + c);
            }
        }
    }
    return sum;
}

using Expected = std::vector<std::pair<size_t, double>>;

// The expected values of some elements of the result; the first four are the corners. They are kept for the problem's next
// candidate, because the GPU waits while they are computed.
const Expected& expected_of(const Problem& problem, const Operand& a, const Operand& b, const Operand& c, float alpha) {
    static std::map<std::string, Expected> known;
    Expected& expected = known[problem.words];
    if (!expected.empty()) return expected;
    const auto& [m, n, k, type, output, layout, epilogue, tolerance, batch, conv, words] = problem;
    const bool bias = epilogue.rfind("bias", 0) == 0;
    const bool a_row = layout[0] == 'r', b_row = layout[1] == 'r';
    const size_t rows = static_cast<size_t>(std::max(1, batch)) * m;
    uint64_t state = 7;
    for (int sample = 0; sample < kSamples; ++sample) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        size_t i = (state >> 20) % rows, j = (state >> 42) % n;
        if (sample < 4) i = sample & 1 ? rows - 1 : 0, j = sample & 2 ? n - 1 : 0;
        const size_t one = i / m, row = i % m;
        const double sum = conv.n > 0 ? convolved(conv, a, b, i, j)
                                      : dot(a, one * m * k + (a_row ? row * k : row), a_row ? 1 : m,  //
                                            b, one * n * k + (b_row ? j : j * k), b_row ? n : 1, k);
        expected.emplace_back(i * n + j, activated(epilogue, alpha * sum + (bias ? c.at(j) : 0.0)));
    }
    return expected;
}

// A candidate's result, copied from the GPU. The next candidate uses the memory again: the system clears new memory page
// by page.
std::vector<char> result;

// Returns the line to print for a kernel that works. The first candidate of the field is the kernel, the others are its
// rivals. Calls `turn` when it needs the GPU; `turn` returns the best time so far, or 0.
template <typename Turn>
std::string measure(const Problem& problem, const std::vector<Candidate>& field, Turn turn) {
    const auto& [m, n, k, type, output, layout, epilogue, tolerance, batch, conv, words] = problem;
    int devices = 0;
    needed(cudaGetDeviceCount(&devices), kNoGpu);  // the driver starts, which takes a while
    const bool bias = epilogue.rfind("bias", 0) == 0;
    const bool whole = type == "int8";
    const size_t count = std::max(1, batch), total = count * m * n;
    const double scale = conv.n > 0 ? std::exp2(-std::round(std::log2(static_cast<double>(k)) / 2)) : 1.0;
    const size_t left_count = conv.n > 0 ? static_cast<size_t>(conv.n * conv.h * conv.w * conv.c) : count * m * k;
    Operand a(type, left_count, 1), b(type, count * n * k, 2, scale), c(output, n, 3);
    const float alpha = whole || conv.n > 0 ? 1.0f : static_cast<float>(1.0 / std::sqrt(static_cast<double>(k)));
    const Expected& expected = expected_of(problem, a, b, c, alpha);
    const size_t d_bytes = total * bytes_of(output);
    if (result.size() < d_bytes) result.resize(d_bytes);
    const double best_us = turn();
    needed(cudaSetDevice(0), kNoGpu);
    int cache_bytes = 0;
    needed(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, 0), "asking the GPU");
    const size_t flush_bytes = std::max<size_t>(2 * static_cast<size_t>(cache_bytes), 64 << 20);
    const size_t d_apart = (d_bytes + 255) / 256 * 256, together = a.apart() + b.apart() + d_apart;
    const bool is_short = together <= static_cast<size_t>(cache_bytes);
    const int copies = !is_short ? 1 : static_cast<int>(std::min<size_t>(2 * flush_bytes / together + 1, kCopies));
    std::vector<size_t> spaces;
    for (const Candidate& one : field) {
        spaces.push_back(conv.n > 0  ? 0
                         : batch > 0 ? one.batched_workspace_bytes(m, n, k, batch)
                                     : one.workspace_bytes(m, n, k));
    }
    const size_t space = *std::max_element(spaces.begin(), spaces.end());
    size_t needed_bytes = 0;
    for (const size_t one : {flush_bytes, copies * a.apart(), copies * b.apart(), c.apart(), copies * d_apart, space}) {
        needed_bytes += Block::whole(one);
    }
    needed(block.reserve(needed_bytes), "no memory for the operands");
    void* const flush = block.take(flush_bytes);
    a.upload(copies), b.upload(copies), c.upload();
    char* const d = static_cast<char*>(block.take(copies * d_apart));
    void* const workspace = block.take(space);
    needed(cudaMemset(d, 0xff, d_bytes), "clearing the result");
    const cudaStream_t stream = nullptr;  // the candidate may have a CUDA runtime of its own
    const auto once = [&, m = m, n = n, k = k, batch = batch, conv = conv](int number = 0, size_t who = 0) {
        const Candidate& found = field[who];
        const void *const left = a.copy(number), *const right = b.copy(number);
        void* const out = d + number * d_apart;
        void* const third = bias ? c.device : out;
        if (conv.n > 0 && bias) {
            return reinterpret_cast<ConvBiasRun>(found.conv_run)(left, right, third, out, conv.n, conv.h, conv.w, conv.c, n,
                                                                 conv.r, conv.s, conv.results(0), conv.results(1), stream);
        }
        if (conv.n > 0) {
            return reinterpret_cast<ConvRun>(found.conv_run)(left, right, out, conv.n, conv.h, conv.w, conv.c, n, conv.r,
                                                             conv.s, conv.results(0), conv.results(1), stream);
        }
        if (batch > 0) {
            return found.batched_run(left, right, third, out, m, n, k, batch, alpha, 0.0f, workspace, stream);
        }
        return found.run(left, right, third, out, m, n, k, alpha, 0.0f, workspace, stream);
    };

    if (const int status = once(); status != 0) {
        cudaGetLastError();
        const std::string number = std::to_string(status < 0 ? -status : status);
        say("refused", (status < 0 ? "cutlass::Status " : "CUDA error ") + number);
    }
    worked(cudaStreamSynchronize(stream), "the first run");
    worked(cudaMemcpy(result.data(), d, d_bytes, cudaMemcpyDeviceToHost), "copying the result");
    // An element that the kernel did not write is NaN too.
    size_t odd = total;
    if (output == "fp16") {
        odd = first_nan<uint16_t>(result.data(), total, 0x7c00);
    } else if (output == "bf16") {
        odd = first_nan<uint16_t>(result.data(), total, 0x7f80);
    } else if (output == "fp32") {
        odd = first_nan<uint32_t>(result.data(), total, 0x7f800000);
    }
    if (odd < total) {
        say("wrong", "element " + std::to_string(odd / n) + ", " + std::to_string(odd % n) + " is no number");
    }
    double worst = 0.0;
    for (const auto& [element, right] : expected) {
        const double value = load(output, &result[element * bytes_of(output)]);
        worst = std::max(worst, std::abs(value - right) / std::max(1.0, std::abs(right)));
    }
    if (!(worst <= tolerance)) {
        char note[96];
        std::snprintf(note, sizeof note, "largest relative error %.2e, allowed %.0e", worst, tolerance);
        say("wrong", note);
    }

    cudaEvent_t begin, end;
    needed(cudaEventCreate(&begin), "making an event");
    needed(cudaEventCreate(&end), "making an event");
    std::vector<std::vector<float>> times(field.size());
    const auto timed = [&](int runs, double enough_ms) {
        double spent_ms = 0.0;
        for (int i = 0; i < runs && (i < kLeast || spent_ms < enough_ms); ++i) {
            for (size_t next = 0; next < field.size(); ++next) {
                const size_t who = (next + static_cast<size_t>(i)) % field.size();
                worked(cudaMemsetAsync(flush, i, flush_bytes, stream), "flushing the cache");
                worked(cudaEventRecord(begin, stream), "timing");
                for (int number = 0; number < copies; ++number) once(number, who);
                worked(cudaEventRecord(end, stream), "timing");
                worked(cudaEventSynchronize(end), "a timed run");
                float ms = 0.0f;
                worked(cudaEventElapsedTime(&ms, begin, end), "timing");
                times[who].push_back(1e3f * ms / static_cast<float>(copies));
                spent_ms += ms;
            }
        }
    };
    for (size_t who = 0; who < field.size(); ++who) {
        for (int i = 0; i < kWarmUp; ++i) once(0, who);
    }
    timed(kShort, 1e9);
    const char* outcome = "measured";
    if (best_us > 0.0 && quantile(times[0], 0.5) > kHopeless * best_us) {
        outcome = "hopeless";
    } else {
        for (auto& some : times) some.clear();
        field.size() > 1 ? timed(kTurns, 1e9) : timed(copies > 1 ? kLeast : kMost, kEnoughMs);
    }
    const double median = quantile(times[0], 0.5);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    if (block.size > Block::kMost) block.release();
    char line[256];
    std::snprintf(
        line, sizeof line,
        "{\"outcome\": \"%s\", \"time_us\": %.3f, \"spread\": %.4f, \"error\": %.3e, \"samples\": %zu, "
        "\"workspace_bytes\": %zu",
        outcome, median, (quantile(times[0], 0.75) - quantile(times[0], 0.25)) / median, worst, times[0].size(), spaces[0]);
    std::string said = line;
    for (size_t who = 1; who < field.size(); ++who) {
        std::snprintf(line, sizeof line, "%s%.3f", who == 1 ? ", \"rivals_us\": [" : ", ", quantile(times[who], 0.5));
        said += line;
    }
    return said + (field.size() > 1 ? "]}" : "}");
}

[[noreturn]] void end() {
    std::fflush(stdout);
    std::_Exit(0);  // skips the functions that a candidate registered to run at exit: they could hang
}

#ifndef MEASURE_WITHOUT_MAIN
constexpr size_t kWords = 10;  // words of a question without rivals
constexpr size_t kResult = 64 << 20;

// Waits for the GPU; returns the best time so far.
double turn() {
    std::puts("ready");
    std::fflush(stdout);
    char* best = nullptr;
    size_t room = 0;
    if (getline(&best, &room, stdin) < 0) std::_Exit(2);  // no caller waits for the answer any more
    const double best_us = std::atof(best);
    std::free(best);
    return best_us;
}

// Returns the convolution that a question names, if any.
Conv conv_of(const std::vector<std::string>& words) {
    Conv conv;
    int padding[2] = {}, stride[2] = {}, dilation[2] = {};
    if (std::sscanf(words[7].c_str(), "conv2d:%d,%d,%d,%d,%d,%d", &stride[0], &stride[1], &padding[0], &padding[1],
                    &dilation[0], &dilation[1]) != 6) {
        return conv;
    }
    if (std::sscanf(words[2].c_str(), "%lldx%lldx%lldx%lld", &conv.n, &conv.h, &conv.w, &conv.c) != 4 ||
        std::sscanf(words[4].c_str(), "%lldx%lld", &conv.r, &conv.s) != 2) {
        say("gpu", "measure was called with sizes of no convolution");
    }
    for (int axis = 0; axis < 2; ++axis) {
        conv.stride[axis] = stride[axis], conv.padding[axis] = padding[axis], conv.dilation[axis] = dilation[axis];
    }
    return conv;
}

Candidate candidate_of(const std::string& path, const std::string& symbol) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) say("crashed", dlerror());
    const auto run = reinterpret_cast<Run>(dlsym(library, (symbol + "_run").c_str()));
    const auto bytes = reinterpret_cast<Workspace>(dlsym(library, (symbol + "_workspace_bytes").c_str()));
    if (run == nullptr) say("crashed", "the library has no " + symbol + "_run");
    return {run, bytes, reinterpret_cast<BatchedRun>(run), reinterpret_cast<BatchedWorkspace>(bytes),
            reinterpret_cast<void*>(run)};
}

// Returns how many words a question has, judged by its first ten; each rival adds two.
size_t words_of(const std::vector<std::string>& words) {
    if (words.size() < kWords) return kWords;
    const size_t comma = words[9].find(',');
    return kWords + (comma == std::string::npos ? 0 : 2 * std::strtoul(words[9].c_str() + comma + 1, nullptr, 10));
}

// Measures the kernel that the words name. Prints a line feed first, because a candidate may have left a line unfinished.
void answer(const std::vector<std::string>& words) {
    std::vector<Candidate> field = {candidate_of(words[0], words[1])};
    for (size_t i = kWords; i + 1 < words.size(); i += 2) field.push_back(candidate_of(words[i], words[i + 1]));
    const Conv conv = conv_of(words);
    if (field[0].workspace_bytes == nullptr && conv.n == 0) say("crashed", "the library has no workspace_bytes");
    const size_t times = words[2].find('x');
    const int batch = times == std::string::npos ? 0 : std::atoi(words[2].c_str());
    int m = std::atoi(words[2].c_str() + (times == std::string::npos ? 0 : times + 1));
    int n = std::atoi(words[3].c_str()), k = std::atoi(words[4].c_str());
    if (conv.n > 0) {
        m = static_cast<int>(conv.n * conv.results(0) * conv.results(1));
        k = static_cast<int>(conv.r * conv.s * conv.c);
    }
    const double tolerance = std::atof(words[9].c_str());
    std::string all;
    for (size_t i = 2; i < 9; ++i) all += words[i] + '\n';
    const Problem problem = {m,        n,         k,         words[5], words[6], words[7],
                             words[8], tolerance, conv.n > 0 ? 0 : batch, conv, all};
    const std::string line = measure(problem, field, turn);
    std::printf("\n%s\n", line.c_str());
    std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
    std::vector<std::string> words(arguments + 1, arguments + count);
    if (words.size() >= kWords && words.size() == words_of(words)) {
        answer(words);
        end();
    }
    if (!words.empty()) say("gpu", "measure was called with the wrong arguments");
    std::thread clearing([] { result.resize(kResult); });
    needed(cudaGetDeviceCount(&count), "no GPU");  // the driver starts, which takes a while
    clearing.join();
    turn();
    needed(cudaSetDevice(0), "no GPU");
    needed(cudaFree(nullptr), "no context on the GPU");
    if (block.reserve(Block::kFirst) != cudaSuccess) cudaGetLastError();  // the candidate may need less
    std::puts("{\"outcome\": \"started\"}");
    std::fflush(stdout);
    char* word = nullptr;
    size_t room = 0;
    while (getdelim(&word, &room, '\0', stdin) > 0) {
        words.emplace_back(word);
        if (words.size() < words_of(words)) continue;
        answer(words);
        words.clear();
    }
    end();
}
#else
}  // namespace
#endif
