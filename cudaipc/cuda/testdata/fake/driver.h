/*
 * The part of CUDA's driver interface that package cuda calls. With REAL_HEADER
 * it comes from NVIDIA's cuda.h instead: that the fake compiles with it as well
 * shows that these declarations are right.
 */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef REAL_HEADER
#include <cuda.h>
#else

typedef int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef void *CUarray;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef int CUdevice_attribute;
typedef int CUpointer_attribute;
typedef unsigned int CUstreamCaptureMode;
typedef unsigned int CUmemorytype;
typedef unsigned int CUmemAllocationHandleType;
typedef unsigned int CUmemAllocationGranularity_flags;
typedef unsigned int CUdriverProcAddressQueryResult;

typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct { int type; int id; } CUmemLocation;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

typedef struct {
	size_t srcXInBytes, srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

#endif /* REAL_HEADER */

/* Codes by number, so that they are the same with both headers. */
enum {
	OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201, MAP_FAILED_ = 205, ALREADY_MAPPED = 208, INVALID_HANDLE = 400, NOT_FOUND = 500,
	NOT_READY = 600, ILLEGAL_ADDRESS = 700, CONTEXT_DESTROYED = 709, ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713, NOT_SUPPORTED = 801,
};

#define MAX_DEVICES 4
#define GRANULARITY (2ul << 20)
#define TOTAL_BYTES (1ul << 30)

/* Addresses of a device are no addresses of the process: a CPU access to one crashes. */
#define DEVICE_BIAS (1ull << 60)
#define HOST_BIAS (1ull << 59)

/* One argument of a call, and how wide the callee takes it to be. */
struct arg { uint64_t value; int bytes; };
#define A(x) { (uint64_t)(x), (int)sizeof(x) }

/*
 * ENTER is the first thing that every call does: it records the arguments, and
 * returns at once where the test says so, where the device has failed, or where
 * the thread has no context that the call needs.
 */
enum { ANY, CONTEXT };
#define ENTER(needs, ...) \
	do { \
		const struct arg given[] = {__VA_ARGS__}; \
		static struct call *call; \
		int result; \
		if (enter(&call, __func__, needs, (int)(sizeof given / sizeof *given), given, &result)) \
			return (CUresult)result; \
	} while (0)

struct call; /* what is counted of one; found by its name, once */
int enter(struct call **call, const char *name, int needs, int n, const struct arg *args, int *result);

/* What cuGetProcAddress knows: each signature with the version it came with. */
struct signature { const char *base; int version; const char *exported; void *address; };
extern const struct signature fake_signatures[];

/* What lies at an address of the process. */
struct place { unsigned long inode, offset; int writable; };

/* Memory that the device knows. */
enum kind { ALLOCATION, MAPPING, IMPORT, HOST };
struct range {
	uint64_t base; /* as the device sees it */
	size_t bytes;
	enum kind kind;
	char *host; /* where it really is */
	int fd;
	int device;
	uint64_t serial;
	char handle[64]; /* of an import */
	struct place place; /* of host memory, when it was registered */
	struct range *next;
};

struct range *find_range(uint64_t address);
char *reach(uint64_t address, size_t bytes); /* NULL: illegal */
int is_plain(uint64_t address);
void wait_for_streams(int device);
void drop_streams(int device);
void drop_ranges(int device);
void poison(int device, int code);
int poisoned(int device);
int current_device(void);
long count_ranges(enum kind kind);
long count_streams(void);
long count_events(void);
long count_handles(void);
long count_reservations(void);

#endif
