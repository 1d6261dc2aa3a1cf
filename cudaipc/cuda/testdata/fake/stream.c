/* Streams: a thread each, that does what it was given in order. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum op { COPY, COPY_2D, WRITE, WAIT, RECORD, AWAIT };

/* What an event was recorded at: a wait is for the point of then, wherever and however soon the
 * event is recorded next. */
struct point { int done, refs; };

struct fake_event { struct point *last; int device, dead; };

struct step {
	enum op op;
	uint64_t dst, src;
	size_t bytes, rows, dst_pitch, src_pitch;
	uint32_t value;
	struct point *point; /* of an event */
	struct step *next;
};

struct fake_stream {
	pthread_t thread;
	struct step *first, **last;
	int device, busy, closing, implicit;
	struct fake_stream *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct fake_stream *streams;
static long events[MAX_DEVICES], open_streams;

long count_streams(void) { return open_streams; }
long count_events(void) {
	long n = 0;
	for (int i = 0; i < MAX_DEVICES; i++)
		n += events[i];
	return n;
}

static void pause_shortly(void) {
	const struct timespec t = {0, 20000};
	nanosleep(&t, NULL);
}

/* With mu held: a device may fail without a word. */
static void wait_shortly(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += 1000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&changed, &mu, &t);
}

/* Copies row by row; an address that is none ends the device. */
static void copy(int device, const struct step *s) {
	for (size_t i = 0; i < s->rows; i++) {
		char *dst = reach(s->dst + i * s->dst_pitch, s->bytes), *src = reach(s->src + i * s->src_pitch, s->bytes);
		if (dst == NULL || src == NULL) {
			poison(device, ILLEGAL_ADDRESS);
			return;
		}
		memmove(dst, src, s->bytes);
	}
}

static _Atomic uint32_t *word(uint64_t address) { return (_Atomic uint32_t *)(void *)reach(address, 4); }

/* With mu held. */
static void let_go(struct point *p) {
	if (p != NULL && --p->refs == 0)
		free(p);
}

static void perform(int device, struct step *s) {
	switch (s->op) {
	case COPY:
	case COPY_2D:
		copy(device, s);
		break;
	case WRITE:
		atomic_store(word(s->dst), s->value);
		break;
	case WAIT:
		while (!poisoned(device) && (int32_t)(atomic_load(word(s->dst)) - s->value) < 0)
			pause_shortly();
		break;
	case RECORD:
		pthread_mutex_lock(&mu);
		s->point->done = 1;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&mu);
		break;
	case AWAIT:
		pthread_mutex_lock(&mu);
		while (!poisoned(device) && !s->point->done)
			wait_shortly();
		pthread_mutex_unlock(&mu);
		break;
	}
}

static void *run(void *argument) {
	struct fake_stream *self = argument;
	pthread_mutex_lock(&mu);
	for (;;) {
		while (self->first == NULL && !self->closing)
			pthread_cond_wait(&changed, &mu);
		struct step *s = self->first;
		if (s == NULL)
			break;
		self->first = s->next;
		if (self->first == NULL)
			self->last = &self->first;
		self->busy = 1;
		pthread_mutex_unlock(&mu);
		if (!poisoned(self->device))
			perform(self->device, s);
		pthread_mutex_lock(&mu);
		let_go(s->point);
		free(s);
		self->busy = 0;
		pthread_cond_broadcast(&changed);
	}
	struct fake_stream **at = &streams;
	while (*at != self)
		at = &(*at)->next;
	*at = self->next;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	free(self);
	return NULL;
}

static int works(const struct fake_stream *s) { return s->busy || s->first != NULL; }

void wait_for_streams(int device) {
	pthread_mutex_lock(&mu);
	struct fake_stream *s = streams;
	while (s != NULL) {
		if (s->device == device && works(s)) {
			pthread_cond_wait(&changed, &mu);
			s = streams;
		} else {
			s = s->next;
		}
	}
	pthread_mutex_unlock(&mu);
}

void drop_streams(int device) {
	pthread_mutex_lock(&mu);
	for (struct fake_stream *s = streams; s != NULL; s = s->next)
		if (s->device == device && !s->closing) {
			s->closing = 1;
			open_streams -= !s->implicit;
		}
	events[device] = 0;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
}

static int start_stream(struct fake_stream **result, int implicit) {
	struct fake_stream *s = calloc(1, sizeof *s);
	s->last = &s->first;
	s->device = current_device();
	s->implicit = implicit;
	pthread_mutex_lock(&mu);
	s->next = streams;
	streams = s;
	open_streams += !implicit;
	pthread_mutex_unlock(&mu);
	if (pthread_create(&s->thread, NULL, run, s) != 0)
		return OUT_OF_MEMORY;
	pthread_detach(s->thread);
	*result = s;
	return OK;
}

/* 1 is the legacy default stream of the context, which is there with the context. */
static struct fake_stream *stream_of(CUstream handle) {
	if ((uintptr_t)handle != 1)
		return (struct fake_stream *)handle;
	struct fake_stream *s;
	pthread_mutex_lock(&mu);
	for (s = streams; s != NULL; s = s->next)
		if (s->implicit && !s->closing && s->device == current_device())
			break;
	pthread_mutex_unlock(&mu);
	if (s == NULL)
		start_stream(&s, 1);
	return s;
}

static void enqueue(CUstream handle, struct step step) {
	struct fake_stream *s = stream_of(handle);
	struct step *copy = malloc(sizeof *copy);
	*copy = step;
	copy->next = NULL;
	pthread_mutex_lock(&mu);
	*s->last = copy;
	s->last = &copy->next;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
}

static void drain(CUstream handle) {
	struct fake_stream *s = stream_of(handle);
	pthread_mutex_lock(&mu);
	while (works(s))
		pthread_cond_wait(&changed, &mu);
	pthread_mutex_unlock(&mu);
}

CUresult cuStreamCreate(CUstream *result, unsigned int flags) {
	ENTER(CONTEXT, A(result), A(flags));
	if (flags != 1)
		return INVALID_VALUE;
	return start_stream((struct fake_stream **)result, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
	ENTER(CONTEXT, A(handle));
	pthread_mutex_lock(&mu);
	((struct fake_stream *)handle)->closing = 1;
	open_streams--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mu);
	return OK;
}

CUresult cuStreamQuery(CUstream handle) {
	ENTER(CONTEXT, A(handle));
	struct fake_stream *s = stream_of(handle);
	pthread_mutex_lock(&mu);
	int busy = works(s);
	pthread_mutex_unlock(&mu);
	return busy ? NOT_READY : OK;
}

/* The events of a stream, and what waits for them. */

CUresult cuEventCreate(CUevent *result, unsigned int flags) {
	ENTER(CONTEXT, A(result), A(flags));
	if (flags != 2)
		return INVALID_VALUE;
	struct fake_event *e = calloc(1, sizeof *e);
	e->device = current_device();
	pthread_mutex_lock(&mu);
	events[e->device]++;
	pthread_mutex_unlock(&mu);
	*result = (CUevent)e;
	return OK;
}

CUresult cuEventDestroy_v2(CUevent handle) {
	ENTER(CONTEXT, A(handle));
	struct fake_event *e = (struct fake_event *)handle;
	pthread_mutex_lock(&mu);
	int dead = e->dead;
	e->dead = 1; /* never freed: a later use is an error */
	let_go(e->last);
	e->last = NULL;
	events[e->device] -= !dead;
	pthread_mutex_unlock(&mu);
	return dead ? INVALID_HANDLE : OK;
}

CUresult cuEventRecord(CUevent handle, CUstream stream) {
	ENTER(CONTEXT, A(handle), A(stream));
	struct fake_event *e = (struct fake_event *)handle;
	if (e->dead || e->device != stream_of(stream)->device)
		return INVALID_HANDLE;
	struct point *p = calloc(1, sizeof *p);
	p->refs = 2; /* the event's, and the step's */
	pthread_mutex_lock(&mu);
	let_go(e->last);
	e->last = p;
	pthread_mutex_unlock(&mu);
	enqueue(stream, (struct step){.op = RECORD, .point = p});
	return OK;
}

CUresult cuEventQuery(CUevent handle) {
	ENTER(CONTEXT, A(handle));
	struct fake_event *e = (struct fake_event *)handle;
	if (e->dead)
		return INVALID_HANDLE;
	pthread_mutex_lock(&mu);
	int done = e->last == NULL || e->last->done;
	pthread_mutex_unlock(&mu);
	return done ? OK : NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags) {
	ENTER(CONTEXT, A(stream), A(handle), A(flags));
	struct fake_event *e = (struct fake_event *)handle;
	if (flags != 0 || e->dead)
		return INVALID_VALUE;
	pthread_mutex_lock(&mu);
	struct point *p = e->last;
	if (p != NULL)
		p->refs++;
	pthread_mutex_unlock(&mu);
	if (p != NULL) /* an event without a record delays no stream */
		enqueue(stream, (struct step){.op = AWAIT, .point = p});
	return OK;
}

/* Copies. Plain memory is copied within the call, as the real driver does. */

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
	ENTER(CONTEXT, A(dst), A(src), A(bytes), A(stream));
	struct step s = {.op = COPY, .dst = dst, .src = src, .bytes = bytes, .rows = 1};
	if (is_plain(dst) || is_plain(src)) {
		drain(stream);
		copy(current_device(), &s);
		return OK;
	}
	enqueue(stream, s);
	return OK;
}

static uint64_t start(CUmemorytype type, const void *host, CUdeviceptr device) {
	switch ((int)type) {
	case 1:
		return is_plain((uint64_t)(uintptr_t)host) ? (uint64_t)(uintptr_t)host : 0;
	case 4:
		return device;
	}
	return 0;
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream) {
	ENTER(CONTEXT, A(p), A(stream));
	struct step s = {.op = COPY_2D, .bytes = p->WidthInBytes, .rows = p->Height, .dst_pitch = p->dstPitch, .src_pitch = p->srcPitch};
	s.dst = start(p->dstMemoryType, p->dstHost, p->dstDevice);
	s.src = start(p->srcMemoryType, p->srcHost, p->srcDevice);
	if (s.dst == 0 || s.src == 0 || p->srcPitch < p->WidthInBytes || p->dstPitch < p->WidthInBytes ||
		(p->srcXInBytes | p->srcY | p->dstXInBytes | p->dstY) != 0 || p->srcArray != NULL || p->dstArray != NULL)
		return INVALID_VALUE;
	if (is_plain(s.dst) || is_plain(s.src)) {
		drain(stream);
		copy(current_device(), &s);
		return OK;
	}
	enqueue(stream, s);
	return OK;
}

/* Words. They are registered memory, by the device's address. */

static int is_word(uint64_t address) {
	struct range *r = find_range(address);
	return address % 4 == 0 && r != NULL && reach(address, 4) != NULL;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
	ENTER(CONTEXT, A(stream), A(address), A(value), A(flags));
	if (flags != 0 || !is_word(address))
		return INVALID_VALUE;
	enqueue(stream, (struct step){.op = WRITE, .dst = address, .value = value});
	return OK;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
	ENTER(CONTEXT, A(stream), A(address), A(value), A(flags));
	if (flags != 0 || !is_word(address))
		return INVALID_VALUE;
	enqueue(stream, (struct step){.op = WAIT, .dst = address, .value = value});
	return OK;
}
