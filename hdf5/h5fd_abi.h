// SPDX-License-Identifier: Apache-2.0
// The interface between HDF5 and a file driver that it loads at run time. The plugin uses these declarations instead of
// HDF5's headers and symbols, so one build works with every libhdf5 that can load drivers.
//
// The layout is that of H5FD_class_t and H5FD_t with H5FD_CLASS_VERSION 1 in H5FDdevelop.h of HDF5 1.14 to 2.2 (public
// API: "H5FDdevelop.h", "H5FDpublic.h", "H5PLextern.h"). The enumerations are those of H5FDpublic.h and H5Fpublic.h.
// HDF5 1.13 and older have another layout or no loadable drivers, and HDF5 rejects a class of another version.
// hdf5/fapl.cc compares these declarations with the headers of an installed HDF5.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weightfs::hdf5::abi {

using haddr_t = uint64_t;
using hsize_t = uint64_t;
using hid_t = int64_t;
using herr_t = int;
using htri_t = int;
using hbool_t = bool;

constexpr haddr_t kUndefinedAddress = UINT64_MAX;
constexpr unsigned kClassVersion = 1;
// In the range for third-party drivers; not registered with The HDF Group. HDF5 finds drivers by name.
constexpr int kDriverValue = 24'576;
constexpr int kPluginTypeDriver = 2;    // H5PL_TYPE_VFD
constexpr int kCloseWeak = 1;           // H5F_CLOSE_WEAK
constexpr unsigned kFailIfUnknown = 1;  // H5FD_CTL_FAIL_IF_UNKNOWN_FLAG

// H5FD_mem_t
enum Memory : int { kSameAsBefore = -1, kDefault, kSuper, kBTree, kRawData, kGlobalHeap, kLocalHeap, kHeader, kTypes };

// H5F_ACC_*: flags of open.
enum Access : unsigned {
  kReadWrite = 0x1,
  kTruncate = 0x2,
  kExclusive = 0x4,
  kCreate = 0x10,
  kSwmrWrite = 0x20,
  kSwmrRead = 0x40,
};

// H5FD_FEAT_*: features of a driver. This one has those of sec2, so that files have the same layout.
enum Feature : unsigned long {
  kAggregateMetadata = 0x1,
  kAccumulateMetadata = 0x6,
  kDataSieve = 0x8,
  kAggregateSmallData = 0x10,
  kPosixCompatibleHandle = 0x80,
  kSupportsSwmr = 0x1000,
  kDefaultDriverCompatible = 0x8000,
};

struct Class;

// H5FD_t. HDF5 fills it in; a driver appends its own members.
struct FileBase {
  hid_t driver_id;
  const Class* cls;
  unsigned long fileno;
  unsigned access_flags;
  unsigned long feature_flags;
  haddr_t maxaddr;
  haddr_t base_addr;
  hsize_t threshold;
  hsize_t alignment;
  hbool_t paged_aggr;
};

// H5FD_class_t
struct Class {
  unsigned version;
  int value;
  const char* name;
  haddr_t maxaddr;
  int fc_degree;
  herr_t (*terminate)();
  hsize_t (*sb_size)(FileBase*);
  herr_t (*sb_encode)(FileBase*, char*, unsigned char*);
  herr_t (*sb_decode)(FileBase*, const char*, const unsigned char*);
  size_t fapl_size;
  void* (*fapl_get)(FileBase*);
  void* (*fapl_copy)(const void*);
  herr_t (*fapl_free)(void*);
  size_t dxpl_size;
  void* (*dxpl_copy)(const void*);
  herr_t (*dxpl_free)(void*);
  FileBase* (*open)(const char*, unsigned, hid_t, haddr_t);
  herr_t (*close)(FileBase*);
  int (*cmp)(const FileBase*, const FileBase*);
  herr_t (*query)(const FileBase*, unsigned long*);
  herr_t (*get_type_map)(const FileBase*, Memory*);
  haddr_t (*alloc)(FileBase*, Memory, hid_t, hsize_t);
  herr_t (*free)(FileBase*, Memory, hid_t, haddr_t, hsize_t);
  haddr_t (*get_eoa)(const FileBase*, Memory);
  herr_t (*set_eoa)(FileBase*, Memory, haddr_t);
  haddr_t (*get_eof)(const FileBase*, Memory);
  herr_t (*get_handle)(FileBase*, hid_t, void**);
  herr_t (*read)(FileBase*, Memory, hid_t, haddr_t, size_t, void*);
  herr_t (*write)(FileBase*, Memory, hid_t, haddr_t, size_t, const void*);
  herr_t (*read_vector)(FileBase*, hid_t, uint32_t, Memory*, haddr_t*, size_t*, void**);
  herr_t (*write_vector)(FileBase*, hid_t, uint32_t, Memory*, haddr_t*, size_t*, const void**);
  herr_t (*read_selection)(FileBase*, Memory, hid_t, uint32_t, hid_t*, hid_t*, haddr_t*, size_t*, void**);
  herr_t (*write_selection)(FileBase*, Memory, hid_t, uint32_t, hid_t*, hid_t*, haddr_t*, size_t*, const void**);
  herr_t (*flush)(FileBase*, hid_t, hbool_t);
  herr_t (*truncate)(FileBase*, hid_t, hbool_t);
  herr_t (*lock)(FileBase*, hbool_t);
  herr_t (*unlock)(FileBase*);
  herr_t (*del)(const char*, hid_t);
  herr_t (*ctl)(FileBase*, uint64_t, uint64_t, const void*, void**);
  Memory fl_map[kTypes];
};

}  // namespace weightfs::hdf5::abi
