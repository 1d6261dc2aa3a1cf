package connector

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// A Registry finds types by name. The zero value is empty and ready to use. It is
// safe for concurrent use.
type Registry struct {
	mu    sync.RWMutex
	types map[string]Type
}

// Register adds a type. An empty name, a name that is taken, or a missing Open is an error.
func (r *Registry) Register(t Type) error {
	if t.Name == "" || t.Open == nil {
		return fmt.Errorf("connector: register %q: a type needs a name and a way to open it", t.Name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.types[t.Name]; taken {
		return fmt.Errorf("connector: register %q: the name is taken", t.Name)
	}
	if r.types == nil {
		r.types = make(map[string]Type)
	}
	r.types[t.Name] = t
	return nil
}

// Type returns the type of a name, or an [ErrUnknown] that lists the registered names.
func (r *Registry) Type(name string) (Type, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t, ok := r.types[name]; ok {
		return t, nil
	}
	return Type{}, fmt.Errorf("%w %q: this program has %s%s", ErrUnknown, clip(name), strings.Join(r.names(), ", "), unknownTypeHints[name])
}

// unknownTypeHints maps types that exist only outside this registry to the places where they are
// used.
var unknownTypeHints = map[string]string{
	"CudaIpcConnector": "; it is for edges of a pipeline file, on which Task.EmitTensors sends tensors on a GPU, and for programs in Python",
}

// Names returns the names of the types, sorted.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.names()
}

func (r *Registry) names() []string { return slices.Sorted(maps.Keys(r.types)) }

var discard = slog.New(slog.DiscardHandler)
