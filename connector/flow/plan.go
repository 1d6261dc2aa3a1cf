package flow

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/omnibus-runtime/omnibus/connector"
)

// A Use is an edge and the connector of its values.
type Use struct {
	Edge connector.Edge
	// Name identifies the connector: edges with one name share it. An edge with an empty name has
	// its own connector.
	Name string
	// Type and Extra define the connector.
	Type  string
	Extra map[string]any
}

// id is the same for all uses of one connector.
func (u Use) id() string {
	if u.Name == "" {
		return "\x00" + u.Edge.From + "\x00" + u.Edge.To // no name contains a zero byte
	}
	return u.Name
}

func (u Use) String() string {
	if u.Name == "" {
		return fmt.Sprintf("%s by %s", u.Edge, u.Type)
	}
	return fmt.Sprintf("%s by %s (%s)", u.Edge, u.Name, u.Type)
}

// A Plan lists the edges of a pipeline.
type Plan []Use

// Check refuses a plan with an edge that is listed twice, that leads from a stage to itself, or
// whose connector's name has two definitions, and a plan with unknown types or wrong settings. The
// error lists all faults.
func (p Plan) Check(types *connector.Registry) error {
	var errs []error
	edges := make(map[connector.Edge]bool)
	defined := make(map[string]Use)
	for _, u := range p {
		switch first, again := defined[u.id()]; {
		case u.Edge.From == u.Edge.To:
			errs = append(errs, fmt.Errorf("flow: bad plan: %s leads from a stage to itself", u))
		case edges[u.Edge]:
			errs = append(errs, fmt.Errorf("flow: bad plan: the edge %s stands twice", u.Edge))
		case again && (first.Type != u.Type || !maps.EqualFunc(first.Extra, u.Extra, deepEqual)):
			errs = append(errs, fmt.Errorf("flow: bad plan: %q is defined differently for %s and %s", u.Name, first.Edge, u.Edge))
		case !again:
			errs = append(errs, u.check(types))
		}
		edges[u.Edge] = true
		defined[u.id()] = u
	}
	return errors.Join(errs...)
}

// branches reports whether a request may have values on two edges at once: the plan is not one
// chain of stages.
func (p Plan) branches() bool {
	in, out := make(map[string]int), make(map[string]int)
	for _, u := range p {
		in[u.Edge.To]++
		out[u.Edge.From]++
	}
	begins := 0
	for stage := range out {
		if in[stage] == 0 {
			begins++
		}
	}
	several := func(n int) bool { return n > 1 }
	return begins > 1 || slices.ContainsFunc(slices.Collect(maps.Values(in)), several) || slices.ContainsFunc(slices.Collect(maps.Values(out)), several)
}

func deepEqual(a, b any) bool { return reflect.DeepEqual(a, b) }

func (u Use) check(types *connector.Registry) error {
	t, err := types.Type(u.Type)
	if err == nil {
		_, err = t.Settings(u.Extra)
	}
	if err != nil {
		return fmt.Errorf("flow: bad plan: %s: %w", u, err)
	}
	return nil
}

// Role says what a stage does on an edge.
type Role int

// The roles. A connector that a stage both sends and receives through has both.
const (
	Sender Role = 1 << iota
	Receiver
)

func (r Role) String() string {
	return [...]string{"none", "sender", "receiver", "sender and receiver"}[r&(Sender|Receiver)]
}

// A Need is a connector that a stage must open.
type Need struct {
	Use
	Role  Role
	Edges []connector.Edge // the edges that use it
}

// Needs returns the connectors that a stage must open, each once, in the order
// of the plan.
func (p Plan) Needs(stage string) []Need {
	var needs []Need
	at := make(map[string]int)
	for _, u := range p {
		role := u.role(stage)
		if role == 0 {
			continue
		}
		i, ok := at[u.id()]
		if !ok {
			i = len(needs)
			at[u.id()] = i
			needs = append(needs, Need{Use: u})
		}
		needs[i].Role |= role
		needs[i].Edges = append(needs[i].Edges, u.Edge)
	}
	return needs
}

func (u Use) role(stage string) (role Role) {
	if u.Edge.From == stage {
		role |= Sender
	}
	if u.Edge.To == stage {
		role |= Receiver
	}
	return role
}
