//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// describe is what is known of a device before anything is tried.
func (d *driver) describe(of *card) cudaipc.Caps {
	caps := cudaipc.Caps{
		Device:     of.uuid,
		Name:       of.name,
		Driver:     "cuda " + release(d.lib.version),
		TotalBytes: of.bytes,
		// The UUID of a part of a GPU looks like any other; its name does not.
		MIG: strings.Contains(of.name, "MIG "),
		Why: make(map[string]string),
	}
	for _, number := range d.peers(of) {
		for i := range d.cards {
			if d.cards[i].number == number {
				caps.Peers = append(caps.Peers, d.cards[i].uuid)
			}
		}
	}
	switch {
	case len(caps.Peers) > 0:
	case len(d.cards) == 1:
		caps.Why["Peers"] = "this process sees one GPU"
	default:
		caps.Why["Peers"] = "the driver knows no way between this GPU and the others"
	}
	return caps
}

// unusable describes a device that has no context for this process.
func (d *driver) unusable(of *card, err error) cudaipc.Caps {
	caps := d.describe(of)
	for _, field := range []string{"Arenas", "Handles", "Words", "RegisterHost", "RegisterReadOnly"} {
		caps.Why[field] = err.Error()
	}
	return caps
}

// probe tries out what a device can do. What fails has its reason in Why; an
// error is one that leaves no device to try on, or the context's.
func (g *gpu) probe(ctx context.Context, caps cudaipc.Caps) (cudaipc.Caps, error) {
	err := g.do(func(c *caller) error {
		if err := g.must(c, symMemGetInfo, address(&c.word), address(&c.second)); err != nil {
			return err
		}
		caps.FreeBytes = int64(c.word)
		return nil
	})
	if err != nil {
		return caps, err
	}
	tries := []struct {
		field   string
		has     *bool
		feature feature
		try     func(ctx context.Context) error
	}{
		{"Arenas", &caps.Arenas, forArenas, func(context.Context) error { return g.tryArenas(&caps) }},
		{"Handles", &caps.Handles, forHandles, func(context.Context) error { return g.tryHandles() }},
		{"RegisterHost", &caps.RegisterHost, forHost, func(context.Context) error { return g.tryRegister(false) }},
		{"RegisterReadOnly", &caps.RegisterReadOnly, forHost, func(context.Context) error { return g.tryRegister(true) }},
		{"Words", &caps.Words, forWords, g.tryWords},
	}
	for _, t := range tries {
		err := g.tooOld(t.feature)
		if err == nil {
			err = t.try(ctx)
		}
		switch {
		case err == nil:
			*t.has = true
		case ctx.Err() != nil:
			return caps, fmt.Errorf("trying what %v can do: %w", g.card.uuid, ctx.Err())
		case errors.Is(err, cudaipc.ErrSticky):
			return caps, err
		default:
			caps.Why[t.field] = err.Error()
		}
	}
	return caps, nil
}

// tooOld is the error for a feature that the library has no functions for.
func (g *gpu) tooOld(f feature) error {
	if s, ok := g.lib.missingSymbol(f); ok {
		return fmt.Errorf("%w: it has no %v, which came with CUDA %s", cudaipc.ErrDriverTooOld, s, release(specs[s].version))
	}
	return nil
}

// tryArenas makes the smallest arena there is, and imports it.
func (g *gpu) tryArenas(caps *cudaipc.Caps) error {
	err := g.do(func(c *caller) (err error) {
		caps.GranularityBytes, err = g.granularity(c)
		return err
	})
	if err != nil {
		return g.withAttribute(err, attrVirtualMemory, "virtual memory management")
	}
	a, err := g.newArena(caps.GranularityBytes)
	if err != nil {
		return g.withAttribute(err, attrDescriptors, "memory behind descriptors")
	}
	b, err := g.importArena(a.FD(), a.Bytes())
	if err != nil {
		return errors.Join(err, a.Close())
	}
	return errors.Join(b.Close(), a.Close())
}

// withAttribute adds what the driver itself says about a feature that failed.
func (g *gpu) withAttribute(err error, attribute int, feature string) error {
	if g.lib.attribute(attribute, g.card.number) == 0 {
		return fmt.Errorf("%w; the driver says that the device has no %s", err, feature)
	}
	return err
}

// tryHandles gets a handle. It can be opened in other processes alone.
func (g *gpu) tryHandles() error {
	p, err := g.alloc(1)
	if err != nil {
		return err
	}
	_, _, err = g.exportHandle(p)
	return errors.Join(err, g.freeMemory(p))
}

// tryRegister registers a page, mapped as those of a store are.
func (g *gpu) tryRegister(readOnly bool) error {
	m, err := g.registerTestPage(readOnly)
	if err != nil {
		if readOnly {
			return g.withAttribute(err, attrReadOnlyHostRegister, "registration of memory for reading")
		}
		return err
	}
	return m.close()
}

// tryWords has a stream wait for a word that the CPU then writes, and write
// another one.
func (g *gpu) tryWords(ctx context.Context) error {
	m, err := g.registerTestPage(false)
	if err != nil {
		return err
	}
	s, err := g.newStream()
	if err != nil {
		return errors.Join(err, m.close())
	}
	gate, answer := m.Word(0), m.Word(64)
	err = s.Submit(
		cudaipc.Op{Kind: cudaipc.OpWait, Word: gate, Value: 1},
		cudaipc.Op{Kind: cudaipc.OpWrite, Word: answer, Value: 2},
	)
	early := answer.Host.Load() != 0
	gate.Host.Store(1)
	if waited := s.Synchronize(ctx); waited != nil {
		if ctx.Err() != nil {
			// The stream hangs. It and its page stay, since taking them down would
			// hang as well; nobody is to wait for them from now on.
			_ = g.do(func(*caller) error { delete(g.streams, s); return nil })
			return waited
		}
		err = errors.Join(err, waited)
	}
	switch {
	case err != nil:
	case early:
		err = fmt.Errorf("%w: a stream did not wait for a word", cudaipc.ErrUnsupported)
	case answer.Host.Load() != 2:
		err = fmt.Errorf("%w: a stream did not write a word", cudaipc.ErrUnsupported)
	}
	return errors.Join(err, s.Close(), m.close())
}

// testPage is a page that the device knows.
type testPage struct {
	*hostMemory
	mem []byte
}

func (g *gpu) registerTestPage(readOnly bool) (*testPage, error) {
	fd, err := unix.MemfdCreate("omnibus-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("a page to try: %w", err)
	}
	defer unix.Close(fd)
	size, access := os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE
	if readOnly {
		access = unix.PROT_READ
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("a page to try: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, size, access, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("a page to try: %w", err)
	}
	m, err := g.registerHost(mem, readOnly)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return &testPage{m, mem}, nil
}

func (p *testPage) close() error {
	if err := p.hostMemory.Close(); err != nil {
		return err // the memory stays, since the device may still have it
	}
	return unix.Munmap(p.mem)
}
