/* Devices, contexts, how symbols are found, and what tests steer. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MAX_NAMES 128

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;

static struct call {
	char name[64];
	long count;
	int inject, injections;
	int held; /* calls wait until it is 0 */
	int n;
	struct arg args[16];
} calls[MAX_NAMES];

static int recording; /* calls do nothing but record */
static int device_count = 2;
static int driver_version = 12040;
static char device_name[64] = "Fake GPU";

static struct fake_context { int retained; _Atomic int sticky; } contexts[MAX_DEVICES];
static __thread struct fake_context *current;

static struct call *find(const char *name) {
	for (int i = 0; i < MAX_NAMES; i++) {
		if (calls[i].name[0] == 0)
			strncpy(calls[i].name, name, sizeof calls[i].name - 1);
		if (strcmp(calls[i].name, name) == 0)
			return &calls[i];
	}
	return NULL;
}

int enter(struct call **call, const char *name, int needs, int n, const struct arg *args, int *result) {
	pthread_mutex_lock(&mu);
	if (*call == NULL)
		*call = find(name);
	struct call *c = *call;
	c->count++;
	c->n = n;
	memcpy(c->args, args, (size_t)n * sizeof *args);
	while (c->held)
		pthread_cond_wait(&let_go, &mu);
	int stop = 1;
	if (recording)
		*result = OK;
	else if (c->injections > 0) {
		c->injections--;
		*result = c->inject;
	} else if (needs == CONTEXT && current == NULL)
		*result = INVALID_CONTEXT;
	else if (needs == CONTEXT && current->retained == 0)
		*result = CONTEXT_DESTROYED;
	else if (needs == CONTEXT && current->sticky != 0)
		*result = current->sticky;
	else
		stop = 0;
	pthread_mutex_unlock(&mu);
	return stop;
}

void poison(int device, int code) {
	int none = 0;
	atomic_compare_exchange_strong(&contexts[device].sticky, &none, code);
}

int poisoned(int device) { return contexts[device].sticky; }

int current_device(void) { return (int)(current - contexts); }

/* What tests call. */

void fake_record(int on) { recording = on; }

/* Fails a device, and waits until its streams have stopped. */
void fake_poison(int device, int code) {
	poison(device, code);
	wait_for_streams(device);
}

void fake_devices(int n) { device_count = n; }
void fake_version(int v) { driver_version = v; }
void fake_name(const char *name) { strncpy(device_name, name, sizeof device_name - 1); }

void fake_inject(const char *name, int code, int times) {
	pthread_mutex_lock(&mu);
	struct call *c = find(name);
	c->inject = code;
	c->injections = times;
	pthread_mutex_unlock(&mu);
}

/* Has calls take until it is called once more, with 0. */
void fake_hold(const char *name, int on) {
	pthread_mutex_lock(&mu);
	find(name)->held = on;
	pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&mu);
}

long fake_count(const char *name) {
	pthread_mutex_lock(&mu);
	long n = find(name)->count;
	pthread_mutex_unlock(&mu);
	return n;
}

/* The arguments of the last call, as the callee saw them. */
int fake_args(const char *name, uint64_t *values, int *bytes) {
	pthread_mutex_lock(&mu);
	struct call *c = find(name);
	for (int i = 0; i < c->n; i++) {
		values[i] = c->args[i].value;
		bytes[i] = c->args[i].bytes;
	}
	int n = c->n;
	pthread_mutex_unlock(&mu);
	return n;
}

/* The number of objects that were made and not closed. */
long fake_left(void) {
	long n = count_ranges(ALLOCATION) + count_ranges(MAPPING) + count_ranges(IMPORT) + count_ranges(HOST);
	n += count_streams() + count_events() + count_handles() + count_reservations();
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_DEVICES; i++)
		n += contexts[i].retained;
	pthread_mutex_unlock(&mu);
	return n;
}

/* The driver. */

CUresult cuInit(unsigned int flags) {
	ENTER(ANY, A(flags));
	if (flags != 0)
		return INVALID_VALUE;
	return device_count == 0 ? NO_DEVICE : OK;
}

CUresult cuDriverGetVersion(int *version) {
	ENTER(ANY, A(version));
	*version = driver_version;
	return OK;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
	ENTER(ANY, A(error), A(name));
	if ((int)error != 999)
		return INVALID_VALUE;
	*name = "CUDA_ERROR_UNKNOWN";
	return OK;
}

CUresult cuDeviceGetCount(int *count) {
	ENTER(ANY, A(count));
	*count = device_count;
	return OK;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
	ENTER(ANY, A(device), A(ordinal));
	if (ordinal < 0 || ordinal >= device_count)
		return INVALID_DEVICE;
	*device = ordinal;
	return OK;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
	ENTER(ANY, A(name), A(len), A(device));
	if (device < 0 || device >= device_count)
		return INVALID_DEVICE;
	snprintf(name, (size_t)len, "%s %d", device_name, device);
	return OK;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
	ENTER(ANY, A(uuid), A(device));
	if (device < 0 || device >= device_count)
		return INVALID_DEVICE;
	for (int i = 0; i < 16; i++)
		uuid->bytes[i] = (char)(0xa0 + i);
	uuid->bytes[15] = (char)device;
	return OK;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
	ENTER(ANY, A(bytes), A(device));
	*bytes = TOTAL_BYTES;
	return OK;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
	ENTER(ANY, A(value), A(attribute), A(device));
	*value = attribute == 102 || attribute == 103 || attribute == 113;
	return OK;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
	ENTER(ANY, A(can), A(device), A(peer));
	if (device == peer)
		return INVALID_DEVICE;
	*can = 1;
	return OK;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
	ENTER(ANY, A(context), A(device));
	if (device < 0 || device >= device_count)
		return INVALID_DEVICE;
	pthread_mutex_lock(&mu);
	contexts[device].retained++;
	pthread_mutex_unlock(&mu);
	*context = (CUcontext)&contexts[device];
	return OK;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	ENTER(ANY, A(device));
	pthread_mutex_lock(&mu);
	int active = contexts[device].retained > 0;
	contexts[device].retained -= active;
	int last = active && contexts[device].retained == 0;
	pthread_mutex_unlock(&mu);
	if (last && contexts[device].sticky != 0) {
		/* Kinder than the real one, for which the process has to end. */
		wait_for_streams(device);
		drop_streams(device);
		drop_ranges(device);
		contexts[device].sticky = 0;
	}
	return active ? OK : INVALID_CONTEXT;
}

/* The context before, as deep as anybody needs. */
static __thread struct fake_context *before[8];
static __thread int depth;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
	ENTER(ANY, A(context));
	if (depth == 8)
		return OUT_OF_MEMORY;
	before[depth++] = current;
	current = (struct fake_context *)context;
	return OK;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
	ENTER(ANY, A(context));
	if (depth == 0)
		return INVALID_CONTEXT;
	*context = (CUcontext)current;
	current = before[--depth];
	return OK;
}

static __thread CUstreamCaptureMode capture;

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
	ENTER(ANY, A(mode));
	if (*mode > 2)
		return INVALID_VALUE;
	CUstreamCaptureMode was = capture;
	capture = *mode;
	*mode = was;
	return OK;
}

/* An old signature: its caller has asked for the wrong version. */
CUresult fake_wrong_version(void) {
	const struct arg none[1] = {{0, 0}};
	int result;
	static struct call *call;
	enter(&call, "wrong_version", ANY, 0, none, &result);
	return INVALID_VALUE;
}

static void *look_up(const char *base, int version) {
	void *found = NULL;
	for (const struct signature *s = fake_signatures; s->base != NULL; s++) {
		if (strcmp(s->base, base) != 0 || s->version > version || s->version > driver_version)
			continue;
		/* The name of one that tests do without begins so. */
		found = strncmp(s->exported, "no_", 3) == 0 ? NULL : s->address;
	}
	return found;
}

#ifndef NO_PROC_ADDRESS_V2
CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
	ENTER(ANY, A(symbol), A(address), A(version), A(flags), A(status));
	if (flags != 0)
		return INVALID_VALUE;
	*address = look_up(symbol, version);
	*status = *address == NULL;
	return OK;
}
#endif

#if !defined REAL_HEADER && !defined NO_PROC_ADDRESS
CUresult cuGetProcAddress(const char *symbol, void **address, int version, cuuint64_t flags) {
	ENTER(ANY, A(symbol), A(address), A(version), A(flags));
	if (flags != 0)
		return INVALID_VALUE;
	*address = look_up(symbol, version);
	return *address == NULL ? NOT_FOUND : OK;
}
#endif
