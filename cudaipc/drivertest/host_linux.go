package drivertest

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// alreadyRegistered is CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.
const alreadyRegistered = 712

func testRegister(r *rig) {
	if !r.caps.RegisterHost {
		_, err := r.dev.RegisterHost(r.pages(4*kib), false)
		r.wantErr("RegisterHost", err, cudaipc.ErrUnsupported)
		return
	}
	page := os.Getpagesize()
	mem := r.pages(4 * page)
	for what, bad := range map[string][]byte{
		"in the middle of a page": mem[64:],
		"nothing":                 mem[:0],
		"no memory":               nil,
	} {
		_, err := r.dev.RegisterHost(bad, false)
		r.wantErr("register "+what, err, cudaipc.ErrInvalid)
	}
	h, err := r.dev.RegisterHost(mem, false)
	if err != nil {
		r.Fatal(err)
	}
	if h.Ptr(int64(page)) != h.Ptr(0)+cudaipc.Ptr(page) {
		r.Errorf("a page further is %#x, from %#x on", h.Ptr(int64(page)), h.Ptr(0))
	}
	w := h.Word(int64(page) + 4)
	w.Host.Store(0x04030201)
	if w.Dev != h.Ptr(int64(page)+4) || mem[page+4] != 1 || mem[page+7] != 4 {
		r.Errorf("the word is at %#x of %#x, with bytes %v", w.Dev, h.Ptr(0), mem[page+4:][:4])
	}
	if err := h.Close(); err != nil {
		r.Errorf("Close: %v", err)
	}
	mem[0] = 1 // the memory is still mapped
}

func testRegisterTwice(r *rig) {
	r.need("RegisterHost")
	page := os.Getpagesize()
	mem := r.pages(4 * page)
	h, err := r.dev.RegisterHost(mem[:2*page], false)
	if err != nil {
		r.Fatal(err)
	}
	for what, again := range map[string][]byte{"all of it": mem[:2*page], "a part of it": mem[page:]} {
		_, err := r.dev.RegisterHost(again, false)
		r.wantErr("register "+what+" twice", err, cudaipc.ErrInvalid)
		if own := (*cudaipc.Error)(nil); errors.As(err, &own) && own.Code != alreadyRegistered {
			r.Errorf("register %s twice: code %d, want %d", what, own.Code, alreadyRegistered)
		}
	}
	beside, err := r.dev.RegisterHost(mem[2*page:], false)
	if err != nil {
		r.Fatalf("register the memory beside: %v", err)
	}
	if err := errors.Join(h.Close(), beside.Close()); err != nil {
		r.Fatal(err)
	}
	if h, err = r.dev.RegisterHost(mem, false); err != nil {
		r.Fatalf("register again what was closed: %v", err)
	}
	if err := h.Close(); err != nil {
		r.Error(err)
	}
}

// testRegisterReadOnly: memory that is mapped for reading can be the source of copies, if the
// driver accepts it.
func testRegisterReadOnly(r *rig) {
	r.need("RegisterHost")
	const n = 64 * kib
	fd := r.memfd(n)
	writable, readable := r.pagesOf(fd, n, unix.PROT_READ|unix.PROT_WRITE), r.pagesOf(fd, n, unix.PROT_READ)
	_, err := r.dev.RegisterHost(readable, false)
	r.wantErr("register memory for writing that can only be read", err, cudaipc.ErrInvalid)
	h, err := r.dev.RegisterHost(readable, true)
	if !r.caps.RegisterReadOnly {
		r.wantErr("register memory for reading", err, cudaipc.ErrUnsupported)
		return
	}
	if err != nil {
		r.Fatalf("RegisterHost: %v", err)
	}
	r.closeLater("memory for reading", h.Close)
	copy(writable, pattern(1, n))
	p, s := r.alloc(n), r.stream()
	r.submit(s, copyOp(p, h.Ptr(0), n))
	r.synchronize(s)
	r.check("copied from there", p, 1, n)
}
