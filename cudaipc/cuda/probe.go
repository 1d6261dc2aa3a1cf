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

// describe returns the properties of a device that need no context.
func (d *driver) describe(of *card) cudaipc.Caps {
	caps := cudaipc.Caps{
		Device:     of.uuid,
		Name:       of.name,
		Driver:     "cuda " + release(d.lib.version),
		TotalBytes: of.bytes,
		// The UUID of a part of a GPU has no mark; its name has.
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

// unusable returns the capabilities of a device without a context.
func (d *driver) unusable(of *card, err error) cudaipc.Caps {
	caps := d.describe(of)
	for _, field := range []string{"Arenas", "Handles", "Words", "RegisterHost", "RegisterReadOnly"} {
		caps.Why[field] = err.Error()
	}
	return caps
}

// probe tries the features of a device. A feature that fails has its error in Why; probe itself
// fails if the device fails, or with the context.
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

// tooOld returns the error of a feature whose functions the library lacks.
func (g *gpu) tooOld(f feature) error {
	if s, ok := g.lib.missingSymbol(f); ok {
		return fmt.Errorf("%w: it has no %v, which came with CUDA %s", cudaipc.ErrDriverTooOld, s, release(specs[s].version))
	}
	return nil
}

// tryArenas makes the smallest arena, and imports it.
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

// withAttribute adds the driver's own attribute of a feature that failed.
func (g *gpu) withAttribute(err error, attribute int, feature string) error {
	if g.lib.attribute(attribute, g.card.number) == 0 {
		return fmt.Errorf("%w; the driver says that the device has no %s", err, feature)
	}
	return err
}

// tryHandles exports a handle. Only other processes can open it.
func (g *gpu) tryHandles() error {
	p, err := g.alloc(1)
	if err != nil {
		return err
	}
	_, _, err = g.exportHandle(p)
	return errors.Join(err, g.freeMemory(p))
}

// tryRegister registers a page, mapped like those of a store.
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

// tryWords makes a stream wait for a word that the CPU then writes, and write another word.
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
			// The stream hangs. It stays with its page, since closing them would hang as well;
			// synchronize must not wait for it from now on.
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

// testPage is a registered page.
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
		return err // the device may still use it, so the memory stays mapped
	}
	return unix.Munmap(p.mem)
}
