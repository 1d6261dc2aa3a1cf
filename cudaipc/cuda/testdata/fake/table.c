/*
 * Every signature by its base name, oldest first. The old ones only
 * count their calls.
 */
struct signature { const char *base; int version; const char *exported; void *address; };

int fake_wrong_version(void);

int cuMemAlloc(void) { return fake_wrong_version(); }
int cuMemFree(void) { return fake_wrong_version(); }
int cuMemGetInfo(void) { return fake_wrong_version(); }
int cuMemGetAddressRange(void) { return fake_wrong_version(); }
int cuDeviceTotalMem(void) { return fake_wrong_version(); }
int cuMemcpy2DAsync(void) { return fake_wrong_version(); }
int cuStreamDestroy(void) { return fake_wrong_version(); }
int cuEventDestroy(void) { return fake_wrong_version(); }
int cuStreamWriteValue32(void) { return fake_wrong_version(); }
int cuStreamWaitValue32(void) { return fake_wrong_version(); }
int cuMemHostRegister(void) { return fake_wrong_version(); }
int cuMemHostGetDevicePointer(void) { return fake_wrong_version(); }
int cuIpcOpenMemHandle(void) { return fake_wrong_version(); }
int cuDevicePrimaryCtxRelease(void) { return fake_wrong_version(); }
int cuDeviceGetUuid(void) { return fake_wrong_version(); }

void cuInit(void);
void cuDriverGetVersion(void);
void cuGetErrorName(void);
void cuDeviceGetCount(void);
void cuDeviceGet(void);
void cuDeviceGetName(void);
void cuDeviceGetUuid_v2(void);
void cuDeviceTotalMem_v2(void);
void cuDeviceGetAttribute(void);
void cuDevicePrimaryCtxRetain(void);
void cuDevicePrimaryCtxRelease_v2(void);
void cuCtxPushCurrent_v2(void);
void cuCtxPopCurrent_v2(void);
void cuMemGetInfo_v2(void);
void cuMemAlloc_v2(void);
void cuMemFree_v2(void);
void cuMemGetAddressRange_v2(void);
void cuPointerGetAttribute(void);
void cuMemcpyAsync(void);
void cuMemcpy2DAsync_v2(void);
void cuStreamCreate(void);
void cuStreamDestroy_v2(void);
void cuStreamQuery(void);
void cuStreamWaitEvent(void);
void cuEventCreate(void);
void cuEventDestroy_v2(void);
void cuEventRecord(void);
void cuEventQuery(void);
void cuStreamWriteValue32_v2(void);
void cuStreamWaitValue32_v2(void);
void cuMemHostRegister_v2(void);
void cuMemHostUnregister(void);
void cuMemHostGetDevicePointer_v2(void);
void cuIpcGetMemHandle(void);
void cuIpcOpenMemHandle_v2(void);
void cuIpcCloseMemHandle(void);
void cuMemGetAllocationGranularity(void);
void cuMemCreate(void);
void cuMemRelease(void);
void cuMemAddressReserve(void);
void cuMemAddressFree(void);
void cuMemMap(void);
void cuMemUnmap(void);
void cuMemSetAccess(void);
void cuMemExportToShareableHandle(void);
void cuMemImportFromShareableHandle(void);
void cuDeviceCanAccessPeer(void);
void cuThreadExchangeStreamCaptureMode(void);

#define TEXT(x) #x
#define SIGNATURE(base, version, name) {base, version, TEXT(name), (void *)name}

const struct signature fake_signatures[] = {
	SIGNATURE("cuInit", 2000, cuInit),
	SIGNATURE("cuDriverGetVersion", 2020, cuDriverGetVersion),
	SIGNATURE("cuGetErrorName", 6000, cuGetErrorName),
	SIGNATURE("cuDeviceGetCount", 2000, cuDeviceGetCount),
	SIGNATURE("cuDeviceGet", 2000, cuDeviceGet),
	SIGNATURE("cuDeviceGetName", 2000, cuDeviceGetName),
	SIGNATURE("cuDeviceGetUuid", 9020, cuDeviceGetUuid),
	SIGNATURE("cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2),
	SIGNATURE("cuDeviceTotalMem", 2000, cuDeviceTotalMem),
	SIGNATURE("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2),
	SIGNATURE("cuDeviceGetAttribute", 2000, cuDeviceGetAttribute),
	SIGNATURE("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain),
	SIGNATURE("cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease),
	SIGNATURE("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2),
	SIGNATURE("cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2),
	SIGNATURE("cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2),
	SIGNATURE("cuMemGetInfo", 2000, cuMemGetInfo),
	SIGNATURE("cuMemGetInfo", 3020, cuMemGetInfo_v2),
	SIGNATURE("cuMemAlloc", 2000, cuMemAlloc),
	SIGNATURE("cuMemAlloc", 3020, cuMemAlloc_v2),
	SIGNATURE("cuMemFree", 2000, cuMemFree),
	SIGNATURE("cuMemFree", 3020, cuMemFree_v2),
	SIGNATURE("cuMemGetAddressRange", 2000, cuMemGetAddressRange),
	SIGNATURE("cuMemGetAddressRange", 3020, cuMemGetAddressRange_v2),
	SIGNATURE("cuPointerGetAttribute", 4000, cuPointerGetAttribute),
	SIGNATURE("cuMemcpyAsync", 4000, cuMemcpyAsync),
	SIGNATURE("cuMemcpy2DAsync", 2000, cuMemcpy2DAsync),
	SIGNATURE("cuMemcpy2DAsync", 3020, cuMemcpy2DAsync_v2),
	SIGNATURE("cuStreamCreate", 2000, cuStreamCreate),
	SIGNATURE("cuStreamDestroy", 2000, cuStreamDestroy),
	SIGNATURE("cuStreamDestroy", 4000, cuStreamDestroy_v2),
	SIGNATURE("cuStreamQuery", 2000, cuStreamQuery),
	SIGNATURE("cuStreamWaitEvent", 3020, cuStreamWaitEvent),
	SIGNATURE("cuEventCreate", 2000, cuEventCreate),
	SIGNATURE("cuEventDestroy", 2000, cuEventDestroy),
	SIGNATURE("cuEventDestroy", 4000, cuEventDestroy_v2),
	SIGNATURE("cuEventRecord", 2000, cuEventRecord),
	SIGNATURE("cuEventQuery", 2000, cuEventQuery),
	SIGNATURE("cuStreamWriteValue32", 8000, cuStreamWriteValue32),
	SIGNATURE("cuStreamWriteValue32", 11070, cuStreamWriteValue32_v2),
	SIGNATURE("cuStreamWaitValue32", 8000, cuStreamWaitValue32),
	SIGNATURE("cuStreamWaitValue32", 11070, cuStreamWaitValue32_v2),
	SIGNATURE("cuMemHostRegister", 4000, cuMemHostRegister),
	SIGNATURE("cuMemHostRegister", 6050, cuMemHostRegister_v2),
	SIGNATURE("cuMemHostUnregister", 4000, cuMemHostUnregister),
	SIGNATURE("cuMemHostGetDevicePointer", 2020, cuMemHostGetDevicePointer),
	SIGNATURE("cuMemHostGetDevicePointer", 3020, cuMemHostGetDevicePointer_v2),
	SIGNATURE("cuIpcGetMemHandle", 4010, cuIpcGetMemHandle),
	SIGNATURE("cuIpcOpenMemHandle", 4010, cuIpcOpenMemHandle),
	SIGNATURE("cuIpcOpenMemHandle", 11000, cuIpcOpenMemHandle_v2),
	SIGNATURE("cuIpcCloseMemHandle", 4010, cuIpcCloseMemHandle),
	SIGNATURE("cuMemGetAllocationGranularity", 10020, cuMemGetAllocationGranularity),
	SIGNATURE("cuMemCreate", 10020, cuMemCreate),
	SIGNATURE("cuMemRelease", 10020, cuMemRelease),
	SIGNATURE("cuMemAddressReserve", 10020, cuMemAddressReserve),
	SIGNATURE("cuMemAddressFree", 10020, cuMemAddressFree),
	SIGNATURE("cuMemMap", 10020, cuMemMap),
	SIGNATURE("cuMemUnmap", 10020, cuMemUnmap),
	SIGNATURE("cuMemSetAccess", 10020, cuMemSetAccess),
	SIGNATURE("cuMemExportToShareableHandle", 10020, cuMemExportToShareableHandle),
	SIGNATURE("cuMemImportFromShareableHandle", 10020, cuMemImportFromShareableHandle),
	SIGNATURE("cuDeviceCanAccessPeer", 4000, cuDeviceCanAccessPeer),
	SIGNATURE("cuThreadExchangeStreamCaptureMode", 10010, cuThreadExchangeStreamCaptureMode),
	{0, 0, 0, 0},
};
