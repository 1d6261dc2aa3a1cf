package host

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
)

// locateAll returns where the client finds the payloads of deliveries.
func (s *session) locateAll(ds []*bus.Delivery) ([]accounts.Location, error) {
	all := make([]accounts.Location, 0, len(ds))
	for _, d := range ds {
		at, err := s.locate(d)
		if err != nil {
			return nil, err
		}
		all = append(all, at)
	}
	return all, nil
}

// locate returns where the client finds a payload. If memory or descriptors for it are lacking, the
// error fails the payload's request.
func (s *session) locate(d *bus.Delivery) (accounts.Location, error) {
	at, err := d.Control().Locate(bus.Reader{Arena: s.srv.arena, InlineBytes: s.srv.services.InlineBytes, Thin: s.copiesSmall()})
	switch {
	case err != nil:
		err = fmt.Errorf("%s: %w", s.Describe(), err)
	case at.Seg != nil && at.Seg != s.srv.arena && !at.Seg.Lasts():
		err = s.mayKeepFiles()
	}
	if err != nil {
		return accounts.Location{}, &bus.StageError{Stage: d.Control().Stream().To, Edge: d.Edge, Key: d.Key, Seq: d.Seq, Err: err}
	}
	return at, nil
}

// copiesSmall reports whether the client copies small payloads anyway, as clients that are not Go nodes
// do: for them a message costs less than a view.
func (s *session) copiesSmall() bool {
	lanes, _ := s.direct.state()
	return !lanes
}
