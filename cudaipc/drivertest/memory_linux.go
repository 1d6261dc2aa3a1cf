package drivertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// pattern returns bytes that depend on the seed and the position.
func pattern(seed byte, n int64) []byte {
	const odd = 0x9e3779b97f4a7c15 // so that all bytes of a product change
	b := make([]byte, 0, n+8)
	for i := uint64(seed) << 32; int64(len(b)) < n; i++ {
		b = binary.LittleEndian.AppendUint64(b, (i+1)*odd)
	}
	return b[:n]
}

// mapPages maps new memory outside Go's heap, or that of a descriptor.
func mapPages(fd, sizeBytes, prot int) ([]byte, error) {
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags |= unix.MAP_ANONYMOUS
	}
	return unix.Mmap(fd, 0, sizeBytes, prot, flags)
}

// pages maps memory until the end of the test.
func (r *rig) pages(sizeBytes int) []byte {
	r.Helper()
	return r.pagesOf(-1, sizeBytes, unix.PROT_READ|unix.PROT_WRITE)
}

func (r *rig) pagesOf(fd, sizeBytes, prot int) []byte {
	r.Helper()
	mem, err := mapPages(fd, sizeBytes, prot)
	if err != nil {
		r.Fatalf("map %d bytes: %v", sizeBytes, err)
	}
	r.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// memfd makes a descriptor of shared memory.
func (r *rig) memfd(sizeBytes int) int {
	r.Helper()
	fd, err := unix.MemfdCreate("drivertest", unix.MFD_CLOEXEC)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(sizeBytes)); err != nil {
		r.Fatal(err)
	}
	return fd
}

// transfer copies between device memory and data, through plain host memory,
// on a stream of its own.
func transfer(ctx context.Context, dev cudaipc.Device, at cudaipc.Ptr, data []byte, toDevice bool) (err error) {
	mem, err := mapPages(-1, len(data), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()
	op := copyOp(cudaipc.HostPtr(mem), at, int64(len(data)))
	if toDevice {
		copy(mem, data)
		op.Dst, op.Src = op.Src, op.Dst
	}
	if err := s.Submit(op); err != nil {
		return err
	}
	if err := s.Synchronize(ctx); err != nil {
		return err
	}
	if !toDevice {
		copy(data, mem)
	}
	return nil
}

// fill puts a pattern into device memory.
func fill(ctx context.Context, dev cudaipc.Device, at cudaipc.Ptr, seed byte, n int64) error {
	return transfer(ctx, dev, at, pattern(seed, n), true)
}

// check compares device memory with a pattern.
func check(ctx context.Context, dev cudaipc.Device, at cudaipc.Ptr, seed byte, n int64) error {
	got := make([]byte, n)
	if err := transfer(ctx, dev, at, got, false); err != nil {
		return err
	}
	return same(got, pattern(seed, n))
}

func same(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	return fmt.Errorf("%d bytes, want %d; they differ from byte %d on", len(got), len(want), i)
}

func (r *rig) fill(at cudaipc.Ptr, seed byte, n int64) {
	r.Helper()
	if err := fill(r.ctx, r.dev, at, seed, n); err != nil {
		r.Fatalf("fill device memory: %v", err)
	}
}

func (r *rig) check(what string, at cudaipc.Ptr, seed byte, n int64) {
	r.Helper()
	if err := check(r.ctx, r.dev, at, seed, n); err != nil {
		r.Errorf("%s: %v", what, err)
	}
}

// descriptors counts those of the process.
func (r *rig) descriptors() int {
	r.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		r.Fatal(err)
	}
	return len(all)
}

func yield() { runtime.Gosched() }
