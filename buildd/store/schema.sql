CREATE TABLE "meta" (
   "name" TEXT PRIMARY KEY,
   "value" INTEGER
);
CREATE TABLE "blobs" (
   "digest" BLOB PRIMARY KEY,
   "size" INTEGER,
   "stored" INTEGER,
   "encoding" INTEGER,
   "data" BLOB
);
CREATE TABLE "results" (
   "key" BLOB PRIMARY KEY,
   "action" TEXT,
   "used" INTEGER,
   "created_ns" INTEGER,
   "body" BLOB
);
CREATE TABLE "refs" (
   "key" BLOB,
   "digest" BLOB,
   PRIMARY KEY ("key", "digest")
);
CREATE TABLE "lists" (
   "digest" BLOB PRIMARY KEY,
   "data" BLOB
);
CREATE TABLE "input_sets" (
   "id" INTEGER PRIMARY KEY,
   "first" BLOB,
   "key" BLOB,
   "files" BLOB,
   "folders" BLOB,
   "body" BLOB
);
CREATE TABLE "sessions" (
   "name" TEXT PRIMARY KEY,
   "pid" INTEGER,
   "start_ticks" INTEGER,
   "boot_id" TEXT
);
CREATE TABLE "pins" (
   "digest" BLOB,
   "session" TEXT,
   "boottime_s" INTEGER,
   PRIMARY KEY ("digest", "session")
);
CREATE TABLE "leases" (
   "key" BLOB,
   "session" TEXT,
   PRIMARY KEY ("key", "session")
);
CREATE TABLE "counters" (
   "name" TEXT PRIMARY KEY,
   "value" INTEGER
);
CREATE TABLE "digests" (
   "device" INTEGER,
   "inode" INTEGER,
   "used" INTEGER,
   "value" BLOB,
   PRIMARY KEY ("device", "inode")
);
CREATE TABLE "actions" (
   "name" BLOB PRIMARY KEY,
   "used" INTEGER,
   "value" BLOB
);
CREATE TABLE "probes" (
   "name" BLOB PRIMARY KEY,
   "used" INTEGER,
   "value" BLOB
);
CREATE TABLE "history" (
   "identity" TEXT PRIMARY KEY,
   "kind" TEXT,
   "used" INTEGER,
   "wall_s" REAL,
   "user_s" REAL,
   "system_s" REAL,
   "memory_bytes" INTEGER,
   "samples" BLOB
);
CREATE TABLE "builds" (
   "id" INTEGER PRIMARY KEY,
   "build_id" TEXT,
   "request_id" TEXT,
   "project" TEXT,
   "targets" TEXT,
   "started_ns" INTEGER,
   "finished_ns" INTEGER,
   "outcome" TEXT,
   "summary" TEXT,
   "events" BLOB
, "stored_bytes" INTEGER NOT NULL DEFAULT 0);
CREATE INDEX "idx_blobs_stored"
    ON "blobs" ("stored");
CREATE INDEX "idx_results_used"
    ON "results" ("used");
CREATE INDEX "idx_refs_digest"
    ON "refs" ("digest");
CREATE INDEX "idx_input_sets_first"
    ON "input_sets" ("first");
CREATE INDEX "idx_input_sets_key"
    ON "input_sets" ("key");
CREATE INDEX "idx_input_sets_files"
    ON "input_sets" ("files");
CREATE INDEX "idx_input_sets_folders"
    ON "input_sets" ("folders");
CREATE INDEX "idx_pins_session"
    ON "pins" ("session");
CREATE INDEX "idx_leases_session"
    ON "leases" ("session");
CREATE INDEX "idx_digests_used"
    ON "digests" ("used");
CREATE INDEX "idx_history_kind_memory_bytes"
    ON "history" ("kind", "memory_bytes");
CREATE INDEX "idx_history_kind_wall_s"
    ON "history" ("kind", "wall_s");
CREATE INDEX "idx_builds_build_id"
    ON "builds" ("build_id");
CREATE TABLE "records" (
   "name" BLOB PRIMARY KEY,
   "used" INTEGER,
   "value" BLOB
);
CREATE INDEX "idx_actions_used"
    ON "actions" ("used");
CREATE INDEX "idx_probes_used"
    ON "probes" ("used");
CREATE INDEX "idx_records_used"
    ON "records" ("used");
CREATE TABLE "profiles" (
   "gpu" TEXT,
   "driver" TEXT,
   "toolkit" TEXT,
   "library" TEXT,
   "flags" TEXT,
   "problem" TEXT,
   "candidate" TEXT,
   "capability" TEXT,
   "outcome" TEXT,
   "time_us" REAL,
   "spread" REAL,
   "error" REAL,
   "checked" INTEGER,
   "workspace_bytes" INTEGER,
   "samples" INTEGER,
   "measured_ns" INTEGER,
   "note" TEXT,
   PRIMARY KEY ("gpu", "driver", "toolkit", "library", "flags", "problem", "candidate")
);
CREATE TABLE "flushes" (
   "build" TEXT PRIMARY KEY,
   "epoch" INTEGER
);
CREATE INDEX "idx_profiles_measured_ns"
    ON "profiles" ("measured_ns");
