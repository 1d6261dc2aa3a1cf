package posix_test

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// TestNoDescriptors: a store that cannot be created or opened, for want of descriptors, says
// so, leaves nothing, and can be once there are some.
func TestNoDescriptors(t *testing.T) {
	opts := fresh(t)
	opts.Readers = 2
	creator, getter := open(t, opts.options()), open(t, opts.options())
	for few := 0; ; few++ {
		var err error
		withDescriptors(t, few, func() { _, err = tryPut(t.Context(), creator, "key", old) })
		if err == nil {
			break
		}
		wantErr(t, fmt.Sprintf("put with %d descriptors", few), err, connector.ErrFull)
		wantEmpty(t, opts)
	}
	for few := 0; ; few++ {
		var got connector.Payload
		var err error
		withDescriptors(t, few, func() { got, err = getter.Get(t.Context(), edge, "key", nil) })
		if err == nil {
			wantBytes(t, got, old)
			break
		}
		wantErr(t, fmt.Sprintf("get with %d descriptors", few), err, connector.ErrFull)
	}
	put(t, creator, "key", old)
	withDescriptors(t, 0, func() {
		if err := creator.Close(); err != nil {
			t.Error(err)
		}
	})
	wantEmpty(t, opts)
}

// TestNoWatch: where the system has no watch left, who waits looks by itself.
func TestNoWatch(t *testing.T) {
	opts := fresh(t)
	creator, getter := open(t, opts.options()), open(t, opts.options())
	put(t, creator, "first", old)
	wantValue(t, getter, "first", nil, old)
	withDescriptors(t, 0, func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := getter.Await(ctx, edge, "key 0", nil)
		wantErr(t, "await", err, context.Canceled)
	})
	for i := range 20 {
		key := fmt.Sprint("key ", i)
		failed := make(chan error, 1)
		go func() {
			payload, err := getter.Await(t.Context(), edge, key, nil)
			if err == nil {
				payload.Release()
			}
			failed <- err
		}()
		put(t, creator, key, old)
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
}

// withDescriptors has a function find only so many.
func withDescriptors(t *testing.T, few int, do func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	var taken []int
	last := -1
	for range few + 1 { // there may be gaps below
		fd, err := unix.Dup(0)
		if err != nil {
			t.Fatal(err)
		}
		taken, last = append(taken, fd), max(last, fd)
	}
	for _, fd := range taken {
		_ = unix.Close(fd)
	}
	lower := limit
	lower.Cur = uint64(last) //nolint:gosec // a descriptor
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lower); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	do()
}
