//go:build cuda && linux && (amd64 || arm64)

package cuda

import "strconv"

// symbol is a function of the library.
type symbol int

const (
	symInit symbol = iota
	symDriverGetVersion
	symGetErrorName
	symDeviceGetCount
	symDeviceGet
	symDeviceGetName
	symDeviceGetUUID
	symDeviceTotalMem
	symDeviceGetAttribute
	symPrimaryCtxRetain
	symPrimaryCtxRelease
	symCtxPushCurrent
	symCtxPopCurrent
	symMemGetInfo
	symMemAlloc
	symMemFree
	symMemGetAddressRange
	symPointerGetAttribute
	symMemcpyAsync
	symMemcpy2DAsync
	symStreamCreate
	symStreamDestroy
	symStreamQuery
	symStreamWaitEvent
	symEventCreate
	symEventDestroy
	symEventRecord
	symEventQuery

	symStreamWriteValue32
	symStreamWaitValue32

	symMemHostRegister
	symMemHostUnregister
	symMemHostGetDevicePointer

	symIpcGetMemHandle
	symIpcOpenMemHandle
	symIpcCloseMemHandle

	symMemGetAllocationGranularity
	symMemCreate
	symMemRelease
	symMemAddressReserve
	symMemAddressFree
	symMemMap
	symMemUnmap
	symMemSetAccess
	symMemExportToShareableHandle
	symMemImportFromShareableHandle

	symDeviceCanAccessPeer

	symThreadExchangeCaptureMode

	symbolCount
)

// feature is the use of a symbol. Symbols of forAll must exist; others disable their feature alone.
type feature int

const (
	forAll feature = iota
	forWords
	forHost
	forHandles
	forArenas
	forPeers
	forNames
	forGraphs
)

// spec describes a symbol.
type spec struct {
	name    string // base name, for cuGetProcAddress
	version int    // CUDA version of the signature that is called: 1000*major + 10*minor
	export  string // exported name of that signature
	feature feature
}

// specs lists the calls of this package. Version and exported name select the same signature: if a
// call has changed, the plain base name in the library is the old signature.
var specs = [symbolCount]spec{
	symInit:                {"cuInit", 2000, "cuInit", forAll},
	symDriverGetVersion:    {"cuDriverGetVersion", 2020, "cuDriverGetVersion", forAll},
	symGetErrorName:        {"cuGetErrorName", 6000, "cuGetErrorName", forNames},
	symDeviceGetCount:      {"cuDeviceGetCount", 2000, "cuDeviceGetCount", forAll},
	symDeviceGet:           {"cuDeviceGet", 2000, "cuDeviceGet", forAll},
	symDeviceGetName:       {"cuDeviceGetName", 2000, "cuDeviceGetName", forAll},
	symDeviceGetUUID:       {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2", forAll},
	symDeviceTotalMem:      {"cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2", forAll},
	symDeviceGetAttribute:  {"cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute", forAll},
	symPrimaryCtxRetain:    {"cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain", forAll},
	symPrimaryCtxRelease:   {"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2", forAll},
	symCtxPushCurrent:      {"cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2", forAll},
	symCtxPopCurrent:       {"cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2", forAll},
	symMemGetInfo:          {"cuMemGetInfo", 3020, "cuMemGetInfo_v2", forAll},
	symMemAlloc:            {"cuMemAlloc", 3020, "cuMemAlloc_v2", forAll},
	symMemFree:             {"cuMemFree", 3020, "cuMemFree_v2", forAll},
	symMemGetAddressRange:  {"cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2", forAll},
	symPointerGetAttribute: {"cuPointerGetAttribute", 4000, "cuPointerGetAttribute", forAll},
	symMemcpyAsync:         {"cuMemcpyAsync", 4000, "cuMemcpyAsync", forAll},
	symMemcpy2DAsync:       {"cuMemcpy2DAsync", 3020, "cuMemcpy2DAsync_v2", forAll},
	symStreamCreate:        {"cuStreamCreate", 2000, "cuStreamCreate", forAll},
	symStreamDestroy:       {"cuStreamDestroy", 4000, "cuStreamDestroy_v2", forAll},
	symStreamQuery:         {"cuStreamQuery", 2000, "cuStreamQuery", forAll},
	symStreamWaitEvent:     {"cuStreamWaitEvent", 3020, "cuStreamWaitEvent", forAll},
	symEventCreate:         {"cuEventCreate", 2000, "cuEventCreate", forAll},
	symEventDestroy:        {"cuEventDestroy", 4000, "cuEventDestroy_v2", forAll},
	symEventRecord:         {"cuEventRecord", 2000, "cuEventRecord", forAll},
	symEventQuery:          {"cuEventQuery", 2000, "cuEventQuery", forAll},

	symStreamWriteValue32: {"cuStreamWriteValue32", 11070, "cuStreamWriteValue32_v2", forWords},
	symStreamWaitValue32:  {"cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2", forWords},

	symMemHostRegister:         {"cuMemHostRegister", 6050, "cuMemHostRegister_v2", forHost},
	symMemHostUnregister:       {"cuMemHostUnregister", 4000, "cuMemHostUnregister", forHost},
	symMemHostGetDevicePointer: {"cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2", forHost},

	symIpcGetMemHandle:   {"cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle", forHandles},
	symIpcOpenMemHandle:  {"cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2", forHandles},
	symIpcCloseMemHandle: {"cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle", forHandles},

	symMemGetAllocationGranularity:  {"cuMemGetAllocationGranularity", 10020, "cuMemGetAllocationGranularity", forArenas},
	symMemCreate:                    {"cuMemCreate", 10020, "cuMemCreate", forArenas},
	symMemRelease:                   {"cuMemRelease", 10020, "cuMemRelease", forArenas},
	symMemAddressReserve:            {"cuMemAddressReserve", 10020, "cuMemAddressReserve", forArenas},
	symMemAddressFree:               {"cuMemAddressFree", 10020, "cuMemAddressFree", forArenas},
	symMemMap:                       {"cuMemMap", 10020, "cuMemMap", forArenas},
	symMemUnmap:                     {"cuMemUnmap", 10020, "cuMemUnmap", forArenas},
	symMemSetAccess:                 {"cuMemSetAccess", 10020, "cuMemSetAccess", forArenas},
	symMemExportToShareableHandle:   {"cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle", forArenas},
	symMemImportFromShareableHandle: {"cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle", forArenas},

	symDeviceCanAccessPeer: {"cuDeviceCanAccessPeer", 4000, "cuDeviceCanAccessPeer", forPeers},

	symThreadExchangeCaptureMode: {"cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode", forGraphs},
}

// String is the name that the library exports.
func (s symbol) String() string { return specs[s].export }

// release returns a version in its usual form.
func release(version int) string {
	return strconv.Itoa(version/1000) + "." + strconv.Itoa(version%1000/10)
}

// The constants of calls.
const (
	attrReadOnlyHostRegister = 113 // CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
	attrVirtualMemory        = 102 // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	attrDescriptors          = 103 // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	attrMaxPitch             = 11  // CU_DEVICE_ATTRIBUTE_MAX_PITCH

	streamNonBlocking  = 1 // CU_STREAM_NON_BLOCKING
	streamPerThread    = 2 // CU_STREAM_PER_THREAD
	eventDisableTiming = 2 // CU_EVENT_DISABLE_TIMING

	// With the barrier, which is the default: a reader that sees the word sees earlier results.
	// CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER must not be set.
	writeValueDefault = 0 // CU_STREAM_WRITE_VALUE_DEFAULT
	waitValueGEQ      = 0 // CU_STREAM_WAIT_VALUE_GEQ: int32(word-value) >= 0

	hostPortable  = 1 // CU_MEMHOSTREGISTER_PORTABLE
	hostDeviceMap = 2 // CU_MEMHOSTREGISTER_DEVICEMAP
	hostReadOnly  = 8 // CU_MEMHOSTREGISTER_READ_ONLY

	ipcLazyPeerAccess = 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

	pointerMemoryType = 2  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	pointerLegacyIPC  = 10 // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE

	memoryHost    = 1 // CU_MEMORYTYPE_HOST
	memoryUnified = 4 // CU_MEMORYTYPE_UNIFIED

	handleDescriptor   = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	allocationPinned   = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	locationDevice     = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	accessReadWrite    = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	granularityMinimum = 0 // CU_MEM_ALLOC_GRANULARITY_MINIMUM

	captureRelaxed = 2 // CU_STREAM_CAPTURE_MODE_RELAXED

	procAddressDefault = 0 // CU_GET_PROC_ADDRESS_DEFAULT
)
