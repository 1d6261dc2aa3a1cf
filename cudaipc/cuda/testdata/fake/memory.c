/* Allocations, arenas, handles between processes, and registered host memory. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static uint64_t serials;
static size_t used;
static long handles, reservations;

static int take(size_t bytes) {
	pthread_mutex_lock(&mu);
	int ok = bytes <= TOTAL_BYTES - used;
	if (ok)
		used += bytes;
	pthread_mutex_unlock(&mu);
	return ok;
}

static void give(size_t bytes) {
	pthread_mutex_lock(&mu);
	used -= bytes;
	pthread_mutex_unlock(&mu);
}

/* What an arena is made of. */
struct memory { int fd; size_t bytes; int refs; int imported; };

static void unref(struct memory *m) {
	pthread_mutex_lock(&mu);
	int last = --m->refs == 0;
	pthread_mutex_unlock(&mu);
	if (!last)
		return;
	close(m->fd);
	if (!m->imported)
		give(m->bytes);
	free(m);
}

/* With mu held. */
static struct range *find_locked(uint64_t address) {
	for (struct range *r = ranges; r != NULL; r = r->next)
		if (address >= r->base && address < r->base + r->bytes)
			return r;
	return NULL;
}

struct range *find_range(uint64_t address) {
	pthread_mutex_lock(&mu);
	struct range *r = find_locked(address);
	pthread_mutex_unlock(&mu);
	return r;
}

/* Registered memory has two addresses: the host's is not in the list. */
static struct range *find_host(uint64_t address) {
	return find_range(address + HOST_BIAS);
}

int is_plain(uint64_t address) { return address < HOST_BIAS && find_host(address) == NULL; }

char *reach(uint64_t address, size_t bytes) {
	if (address < HOST_BIAS)
		return (char *)(uintptr_t)address;
	struct range *r = find_range(address);
	if (r == NULL || bytes > r->base + r->bytes - address)
		return NULL;
	return r->host + (address - r->base);
}

static struct range *add(enum kind kind, uint64_t bias, char *host, size_t bytes, int fd) {
	struct range *r = calloc(1, sizeof *r);
	r->base = (uint64_t)(uintptr_t)host + bias;
	r->bytes = bytes;
	r->kind = kind;
	r->host = host;
	r->fd = fd;
	r->device = current_device();
	pthread_mutex_lock(&mu);
	r->serial = ++serials;
	r->next = ranges;
	ranges = r;
	pthread_mutex_unlock(&mu);
	return r;
}

static void drop(struct range *r) {
	pthread_mutex_lock(&mu);
	struct range **at = &ranges;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	pthread_mutex_unlock(&mu);
	free(r);
}

/* What goes with a context that has failed. */
void drop_ranges(int device) {
	for (;;) {
		pthread_mutex_lock(&mu);
		struct range *r = ranges;
		while (r != NULL && r->device != device)
			r = r->next;
		pthread_mutex_unlock(&mu);
		if (r == NULL)
			return;
		if (r->kind == ALLOCATION)
			give(r->bytes);
		if (r->kind == ALLOCATION || r->kind == IMPORT) {
			munmap(r->host, r->bytes);
			close(r->fd);
		}
		if (r->kind == MAPPING) {
			struct memory *m;
			memcpy(&m, r->handle, sizeof m);
			munmap(r->host, r->bytes);
			__atomic_sub_fetch(&reservations, 1, __ATOMIC_SEQ_CST);
			unref(m);
		}
		drop(r);
	}
}

static struct range *exactly(uint64_t base, enum kind kind) {
	struct range *r = find_range(base);
	return r != NULL && r->base == base && r->kind == kind ? r : NULL;
}

long count_ranges(enum kind kind) {
	long n = 0;
	pthread_mutex_lock(&mu);
	for (struct range *r = ranges; r != NULL; r = r->next)
		n += r->kind == kind;
	pthread_mutex_unlock(&mu);
	return n;
}

long count_handles(void) { return handles; }
long count_reservations(void) { return reservations; }

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
	ENTER(CONTEXT, A(free), A(total));
	*free = TOTAL_BYTES - used;
	*total = TOTAL_BYTES;
	return OK;
}

CUresult cuMemAlloc_v2(CUdeviceptr *result, size_t bytes) {
	ENTER(CONTEXT, A(result), A(bytes));
	if (bytes == 0)
		return INVALID_VALUE;
	if (!take(bytes))
		return OUT_OF_MEMORY;
	int fd = memfd_create("fake-allocation", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		return OUT_OF_MEMORY;
	char *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	*result = add(ALLOCATION, DEVICE_BIAS, host, bytes, fd)->base;
	return OK;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
	ENTER(CONTEXT, A(address));
	struct range *r = exactly(address, ALLOCATION);
	if (r == NULL)
		return INVALID_VALUE;
	wait_for_streams(current_device());
	munmap(r->host, r->bytes);
	close(r->fd);
	give(r->bytes);
	drop(r);
	return OK;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
	ENTER(CONTEXT, A(base), A(bytes), A(address));
	struct range *r = find_range(address);
	if (r == NULL)
		return INVALID_VALUE;
	*base = r->base;
	*bytes = r->bytes;
	return OK;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
	ENTER(CONTEXT, A(data), A(attribute), A(address));
	struct range *r = find_range(address);
	if (r == NULL)
		r = find_host(address);
	if (r == NULL)
		return INVALID_VALUE;
	switch ((int)attribute) {
	case 2:
		*(unsigned int *)data = r->kind == HOST ? 1 : 2;
		return OK;
	case 10:
		*(int *)data = r->kind == ALLOCATION;
		return OK;
	}
	return INVALID_VALUE;
}

/* Handles. Every word of one is in use, so that none can get lost on the way. */

struct handle { uint64_t magic, pid, fd, inode, bytes, serial, filler, check; };
#define MAGIC 0x6b61666c656b6166ull

static uint64_t checksum(const struct handle *h) {
	return h->magic ^ h->pid * 3 ^ h->fd * 5 ^ h->inode * 7 ^ h->bytes * 11 ^ h->serial * 13 ^ h->filler * 17;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *result, CUdeviceptr address) {
	ENTER(CONTEXT, A(result), A(address));
	struct range *r = exactly(address, ALLOCATION);
	if (r == NULL)
		return INVALID_VALUE;
	struct stat st;
	fstat(r->fd, &st);
	struct handle h = {MAGIC, (uint64_t)getpid(), (uint64_t)r->fd, st.st_ino, r->bytes, r->serial, ~0ull, 0};
	h.check = checksum(&h);
	memcpy(result, &h, sizeof h);
	return OK;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *result, CUipcMemHandle given_handle, unsigned int flags) {
	uint64_t words[8];
	memcpy(words, &given_handle, sizeof words);
	ENTER(CONTEXT, A(result), A(words[0]), A(words[1]), A(words[2]), A(words[3]), A(words[4]), A(words[5]),
		A(words[6]), A(words[7]), A(flags));
	struct handle h;
	memcpy(&h, words, sizeof h);
	if (flags != 1 || h.magic != MAGIC || h.check != checksum(&h))
		return INVALID_VALUE;
	if (h.pid == (uint64_t)getpid())
		return INVALID_CONTEXT;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h.pid, (int)h.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) != 0 || st.st_ino != h.inode) {
		if (fd >= 0)
			close(fd);
		return MAP_FAILED_;
	}
	char *host = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	*result = add(IMPORT, DEVICE_BIAS, host, h.bytes, fd)->base;
	return OK;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
	ENTER(CONTEXT, A(address));
	struct range *r = exactly(address, IMPORT);
	if (r == NULL)
		return INVALID_VALUE;
	wait_for_streams(current_device());
	munmap(r->host, r->bytes);
	close(r->fd);
	drop(r);
	return OK;
}

/* Arenas. */

static int is_wanted(const CUmemAllocationProp *p) {
	static const CUmemAllocationProp zero;
	return (int)p->type == 1 && (int)p->requestedHandleTypes == 1 && (int)p->location.type == 1 &&
		p->location.id == current_device() && p->win32HandleMetaData == NULL &&
		memcmp(&p->allocFlags, &zero.allocFlags, sizeof zero.allocFlags) == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *result, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option) {
	ENTER(CONTEXT, A(result), A(properties), A(option));
	if (!is_wanted(properties) || option > 1)
		return INVALID_VALUE;
	*result = GRANULARITY;
	return OK;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *result, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags) {
	ENTER(CONTEXT, A(result), A(bytes), A(properties), A(flags));
	if (!is_wanted(properties) || flags != 0 || bytes == 0 || bytes % GRANULARITY != 0)
		return INVALID_VALUE;
	if (!take(bytes))
		return OUT_OF_MEMORY;
	struct memory *m = calloc(1, sizeof *m);
	m->fd = memfd_create("fake-arena", MFD_CLOEXEC);
	m->bytes = bytes;
	m->refs = 1;
	if (m->fd < 0 || ftruncate(m->fd, (off_t)bytes) != 0)
		return OUT_OF_MEMORY;
	__atomic_add_fetch(&handles, 1, __ATOMIC_SEQ_CST);
	*result = (uint64_t)(uintptr_t)m;
	return OK;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
	ENTER(CONTEXT, A(handle));
	__atomic_sub_fetch(&handles, 1, __ATOMIC_SEQ_CST);
	unref((struct memory *)(uintptr_t)handle);
	return OK;
}

CUresult cuMemAddressReserve(CUdeviceptr *result, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
	ENTER(CONTEXT, A(result), A(bytes), A(alignment), A(hint), A(flags));
	if (bytes == 0 || bytes % 4096 != 0 || (alignment & (alignment - 1)) != 0 || flags != 0)
		return INVALID_VALUE;
	char *host = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (host == MAP_FAILED)
		return OUT_OF_MEMORY;
	__atomic_add_fetch(&reservations, 1, __ATOMIC_SEQ_CST);
	*result = (uint64_t)(uintptr_t)host + DEVICE_BIAS;
	return OK;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
	ENTER(CONTEXT, A(address), A(bytes));
	if (address < DEVICE_BIAS || find_range(address) != NULL)
		return INVALID_VALUE;
	__atomic_sub_fetch(&reservations, 1, __ATOMIC_SEQ_CST);
	munmap((void *)(uintptr_t)(address - DEVICE_BIAS), bytes);
	return OK;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
	ENTER(CONTEXT, A(address), A(bytes), A(offset), A(handle), A(flags));
	struct memory *m = (struct memory *)(uintptr_t)handle;
	if (offset != 0 || flags != 0 || bytes > m->bytes || bytes % GRANULARITY != 0 || find_range(address) != NULL)
		return INVALID_VALUE;
	char *host = (char *)(uintptr_t)(address - DEVICE_BIAS);
	if (mmap(host, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED)
		return MAP_FAILED_;
	pthread_mutex_lock(&mu);
	m->refs++;
	pthread_mutex_unlock(&mu);
	memcpy(add(MAPPING, DEVICE_BIAS, host, bytes, -1)->handle, &m, sizeof m);
	return OK;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
	ENTER(CONTEXT, A(address), A(bytes));
	struct range *r = exactly(address, MAPPING);
	if (r == NULL || r->bytes != bytes)
		return INVALID_VALUE;
	wait_for_streams(current_device());
	mmap(r->host, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	struct memory *m;
	memcpy(&m, r->handle, sizeof m);
	drop(r);
	unref(m);
	return OK;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
	ENTER(CONTEXT, A(address), A(bytes), A(access), A(count));
	struct range *r = exactly(address, MAPPING);
	if (r == NULL || r->bytes != bytes || count == 0)
		return INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if ((int)access[i].location.type != 1 || (int)access[i].flags != 3 || access[i].location.id < 0 || access[i].location.id >= MAX_DEVICES)
			return INVALID_VALUE;
	if (access[0].location.id != current_device())
		return INVALID_VALUE;
	return mprotect(r->host, bytes, PROT_READ | PROT_WRITE) == 0 ? OK : INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *result, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
	ENTER(CONTEXT, A(result), A(handle), A(type), A(flags));
	if (type != 1 || flags != 0)
		return INVALID_VALUE;
	/* Without FD_CLOEXEC: that is for the caller to see to. */
	*(int *)result = fcntl(((struct memory *)(uintptr_t)handle)->fd, F_DUPFD, 3);
	return OK;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *result, void *given_fd, CUmemAllocationHandleType type) {
	ENTER(CONTEXT, A(result), A(given_fd), A(type));
	if (type != 1)
		return INVALID_VALUE;
	int fd = (int)(intptr_t)given_fd;
	char path[64], name[64] = "";
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	struct stat st;
	if (readlink(path, name, sizeof name - 1) < 0 || strncmp(name, "/memfd:fake-arena", 17) != 0 || fstat(fd, &st) != 0)
		return INVALID_VALUE;
	struct memory *m = calloc(1, sizeof *m);
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	m->bytes = (size_t)st.st_size;
	m->refs = 1;
	m->imported = 1;
	__atomic_add_fetch(&handles, 1, __ATOMIC_SEQ_CST);
	*result = (uint64_t)(uintptr_t)m;
	return OK;
}

/* Host memory. */

/* What lies at an address: a part of which file, and whether it can be written. */
static struct place place_of(uintptr_t address) {
	struct place found = {0, 0, 0};
	FILE *maps = fopen("/proc/self/maps", "re");
	if (maps == NULL)
		return found;
	unsigned long from, to, offset, inode;
	char line[512], access[8];
	while (fgets(line, sizeof line, maps) != NULL)
		if (sscanf(line, "%lx-%lx %7s %lx %*s %lu", &from, &to, access, &offset, &inode) == 5 && address >= from && address < to)
			found = (struct place){inode, offset + (address - from), access[1] == 'w'};
	fclose(maps);
	return found;
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags) {
	ENTER(CONTEXT, A(address), A(bytes), A(flags));
	if ((uintptr_t)address % 4096 != 0 || bytes == 0 || (flags & ~8u) != 3)
		return INVALID_VALUE;
	if (find_host((uint64_t)(uintptr_t)address) != NULL)
		return ALREADY_REGISTERED;
	/* Pages are pinned for writing, unless the flag says otherwise. */
	struct place place = place_of((uintptr_t)address);
	if ((flags & 8) == 0 && !place.writable)
		return INVALID_VALUE;
	add(HOST, HOST_BIAS, address, bytes, -1)->place = place;
	return OK;
}

CUresult cuMemHostUnregister(void *address) {
	ENTER(CONTEXT, A(address));
	struct range *r = exactly((uint64_t)(uintptr_t)address + HOST_BIAS, HOST);
	if (r == NULL)
		return NOT_REGISTERED;
	/* The real one keeps the pages that were there, and copies from and to these. */
	struct place now = place_of((uintptr_t)address);
	if (now.inode != r->place.inode || (now.inode != 0 && now.offset != r->place.offset)) {
		fprintf(stderr, "fake: %zu bytes at %p were unmapped while they were registered\n", r->bytes, address);
		abort();
	}
	wait_for_streams(current_device());
	drop(r);
	return OK;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *result, void *address, unsigned int flags) {
	ENTER(CONTEXT, A(result), A(address), A(flags));
	if (flags != 0 || find_host((uint64_t)(uintptr_t)address) == NULL)
		return INVALID_VALUE;
	*result = (uint64_t)(uintptr_t)address + HOST_BIAS;
	return OK;
}
