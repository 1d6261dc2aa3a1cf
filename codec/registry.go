package codec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Registry finds serializers by name and by ID. The zero value is empty and
// ready to use. It is safe for concurrent use; lookups take no lock.
type Registry struct {
	register sync.Mutex // serializes Register
	// table is replaced as a whole by Register and never changed once it is
	// visible, so that a lookup is one atomic load.
	table atomic.Pointer[registryTable]
}

type registryTable struct {
	byID   map[ID]Serializer
	byName map[string]Serializer
}

// emptyTable is the table of a registry without serializers.
var emptyTable registryTable

// builtins are the serializers that Default registers.
var builtins = []Serializer{RawSerializer{}, MsgpackSerializer{}, TensorSerializer{}}

// subpackageIDs are the names and IDs of the serializers in packages below this one. This
// package cannot import them, so a program that does not use them does not carry their
// dependencies. "kv" has no package any more: its name and its
// ID stay reserved, and a program may register its own serializer under both.
var subpackageIDs = map[string]ID{"omni": IDOmni, "kv": IDKV, "proto": IDProto, "bundle": IDBundle}

// Default returns a new registry that holds the built-in serializers. The
// caller may register more; other registries do not see them.
func Default() *Registry {
	r := new(Registry)
	for _, s := range builtins {
		if err := r.Register(s); err != nil {
			panic(err) // two built-ins share a name or an ID
		}
	}
	return r
}

// Register adds s. It refuses a name or ID that is registered already, even for
// an equal serializer; an empty name; a name or an ID of the packages below
// this one without the other; and any other ID below [FirstUserID] that is
// not of a built-in serializer.
func (r *Registry) Register(s Serializer) error {
	name, id := s.Name(), s.ID()
	if !allowed(s, name, id) {
		return fmt.Errorf("codec: register %q with ID %d: reserved for built-in serializers: give it a name of its own and an ID of %d or more",
			name, id, FirstUserID)
	}
	r.register.Lock()
	defer r.register.Unlock()

	old := r.load()
	if other, taken := old.byName[name]; taken {
		return fmt.Errorf("codec: register %q with ID %d: the name belongs to ID %d already", name, id, other.ID())
	}
	if other, taken := old.byID[id]; taken {
		return fmt.Errorf("codec: register %q with ID %d: the ID belongs to %q already", name, id, other.Name())
	}
	next := &registryTable{
		byID:   make(map[ID]Serializer, len(old.byID)+1),
		byName: make(map[string]Serializer, len(old.byName)+1),
	}
	maps.Copy(next.byID, old.byID)
	maps.Copy(next.byName, old.byName)
	next.byID[id], next.byName[name] = s, s
	r.table.Store(next)
	return nil
}

// allowed reports whether a serializer may have that name and that ID.
func allowed(s Serializer, name string, id ID) bool {
	if reserved, ok := subpackageIDs[name]; ok {
		return id == reserved
	}
	return name != "" && (id >= FirstUserID || slices.Contains(builtins, s))
}

// ByID returns the serializer with that ID, or an [ErrUnknown].
func (r *Registry) ByID(id ID) (Serializer, error) {
	if s, ok := r.load().byID[id]; ok {
		return s, nil
	}
	return nil, r.unknown(fmt.Sprintf("ID %d", id))
}

// ByName returns the serializer of that name, or an [ErrUnknown].
func (r *Registry) ByName(name string) (Serializer, error) {
	if s, ok := r.load().byName[name]; ok {
		return s, nil
	}
	return nil, r.unknown(fmt.Sprintf("name %q", name))
}

func (r *Registry) unknown(what string) error {
	known := strings.Join(r.Names(), ", ")
	return fmt.Errorf("codec: %w: %s; registered: %s; register it on both ends", ErrUnknown, what, cmp.Or(known, "none"))
}

// Names returns the names of the registered serializers, in the order of
// their IDs.
func (r *Registry) Names() []string {
	all := slices.SortedFunc(maps.Values(r.load().byID), func(a, b Serializer) int {
		return cmp.Compare(a.ID(), b.ID())
	})
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name()
	}
	return names
}

func (r *Registry) load() *registryTable {
	if t := r.table.Load(); t != nil {
		return t
	}
	return &emptyTable
}
