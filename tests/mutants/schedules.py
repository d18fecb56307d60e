# SPDX-License-Identifier: Apache-2.0
"""Mutants of the order of threads, which only tests that choose schedules by seed notice reliably."""

from mutants.mutant import Mutant

SIMULATION = "schedule_simulation"

MUTANTS = [
    Mutant("order-notify", "The committer is notified of a request when it can see it.",
           "store/commit/committer.cc",
           "    MutexLock lock(mutex_);\n    if (!stopping_) {\n      all_ = all_ || all;\n"
           "      requests_.push_back(std::move(request));\n      wake_.notify_one();\n",
           "    wake_.notify_one();\n    MutexLock lock(mutex_);\n    if (!stopping_) {\n      all_ = all_ || all;\n"
           "      requests_.push_back(std::move(request));\n", (SIMULATION,)),
    Mutant("order-group", "An fsync shares only a flush that began after its call.",
           "store/wal/log_writer.cc",
           "    ++commits_;\n  }\n  RETURN_IF_ERROR(WritePending());\n  return Flush();\n",
           "  }\n  RETURN_IF_ERROR(WritePending());\n  RETURN_IF_ERROR(Flush());\n"
           "  MutexLock lock(mutex_);\n  ++commits_;\n  return {};\n", (SIMULATION,)),
    Mutant("order-flush", "The next commit flushes what was written during a flush.",
           "engine/device_set.cc",
           "  flushes_ += written.size();\n",
           "  for (size_t index = 0; index < devices_.size(); ++index) written_[index] = false;\n"
           "  flushes_ += written.size();\n", (SIMULATION,)),
    Mutant("order-publish", "Nothing changes below a directory while it is published.",
           "store/names/namespace_publish.cc",
           "publishes_ ? inode->Freeze() : inode->Freeze", "publishes_ ? Result<void>() : inode->Freeze",
           (SIMULATION,)),
    Mutant("order-unlink", "A file that a program knows can be opened during its unlink.",
           "store/names/namespace.cc",
           "    if (inode->deleted) return ErrorCode::kAgain;\n", "",
           ("schedule_races",)),
    Mutant("order-content", "A write reads no block that another write has put in memory.",
           "store/file/file_io.cc",
           "      if (inode->file->dirty().Find(block) != nullptr) return {};\n", "", ("schedule_races",)),
]
