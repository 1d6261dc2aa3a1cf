package layers

import (
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

// ends are the packages that take a pipeline of package bus to other processes.
var ends = []string{"bus/host", "bus/node", "internal/terms"}

// ofPrograms are names of package bus that programs have a use for as well, though none of this
// module but the ends uses them.
const ofPrograms = `
	Aborted Completed Failed PastDeadline Running Outcome RequestStatus Unbounded WaitPark WaitPoll
	Emitter ErrEnded ErrNoEdge ErrOverloaded ErrPayload ErrProcessDied ErrTooLarge ErrWindowFull ErrAfterEnd ErrCanceled StageError
	Request.Done Request.Err Request.ID Request.Outcome StageSpec.Checked Task.Request Task.Stage Wait.Validate Wait.WithDefault Floor.Stats Floor.Stalls
`

// mostMet bounds the names of package bus that are for them alone: a name more is a step towards
// one room again. Let a method of bus/floor.go or bus/control.go do what the name is for, or put
// what it says into the plain data that they give already. A field of a struct is met with it.
const mostMet = 70

func TestBoundaryOfBus(t *testing.T) {
	promised := namesOf(promises)
	for _, name := range strings.Fields(ofPrograms) {
		promised = append(promised, "bus."+name)
	}
	met := meetings(readProgram(t), "bus", ends, promised)
	if len(met) > mostMet {
		t.Errorf("the ends of the bus use %d of its names that no other package does, and %d are allowed: %v", len(met), mostMet, met)
	}
	t.Logf("the ends of the bus meet %d names of it; at most %d are allowed: %v", len(met), mostMet, met)
}

func TestBoundaryCanFail(t *testing.T) {
	p := readProgram(t)
	all := meetings(p, "bus", ends, nil)
	if !slices.Contains(all, "DeliveryControl.Discard") || slices.Contains(all, "Delivery.Bytes") {
		t.Errorf("what a delivery gives to its ends alone is Discard, and not Bytes; found %v", all)
	}
	if less := meetings(p, "bus", ends[:1], nil); len(less) >= len(all) {
		t.Errorf("the host's end alone meets %d names of %d", len(less), len(all))
	}
	if promised := meetings(p, "bus", ends, []string{"bus.DeliveryControl.Discard"}); slices.Contains(promised, "DeliveryControl.Discard") {
		t.Error("a name that is promised to programs is counted")
	}
}

// meetings are the functions, types and values of a package that only those packages use which
// are its ends, but for what is promised to programs.
func meetings(p *program, of string, ends, promised []string) []string {
	by := make(map[string][]string) // the packages that use a name
	for _, c := range p.packages {
		if c.path == of {
			continue
		}
		for _, obj := range c.info.Uses {
			if obj.Pkg() == nil || obj.Pkg().Path() != module+"/"+of {
				continue
			}
			if name := nameOf(obj); name != "" && !slices.Contains(by[name], c.path) {
				by[name] = append(by[name], c.path)
			}
		}
	}
	maps.DeleteFunc(by, func(name string, users []string) bool {
		return slices.Contains(promised, of+"."+name) || slices.ContainsFunc(users, func(path string) bool { return !slices.Contains(ends, path) })
	})
	return slices.Sorted(maps.Keys(by))
}

// nameOf is the name of what a package declares, with its type if it is a method; empty for a
// field, or what is not declared by a package.
func nameOf(obj types.Object) string {
	switch o := obj.(type) {
	case *types.Func:
		recv := o.Origin().Signature().Recv()
		if recv == nil {
			return o.Name()
		}
		t := recv.Type()
		if ptr, ok := t.(*types.Pointer); ok {
			t = ptr.Elem()
		}
		return types.TypeString(t, func(*types.Package) string { return "" }) + "." + o.Name()
	case *types.Var:
		if o.IsField() {
			return ""
		}
	}
	if obj.Parent() != obj.Pkg().Scope() {
		return ""
	}
	return obj.Name()
}

// owners are the types, with a dot, of fields and methods; of a struct that two have, the first.
func owners(pkg *types.Package) map[types.Object]string {
	of := make(map[types.Object]string)
	for _, name := range pkg.Scope().Names() {
		tn, _ := pkg.Scope().Lookup(name).(*types.TypeName)
		if tn == nil || tn.IsAlias() {
			continue
		}
		named := tn.Type().(*types.Named)
		own := func(obj types.Object) {
			if of[obj] == "" {
				of[obj] = name + "."
			}
		}
		for m := range named.Methods() {
			own(m)
		}
		switch u := named.Underlying().(type) {
		case *types.Struct:
			for f := range u.Fields() {
				own(f)
			}
		case *types.Interface:
			for m := range u.ExplicitMethods() {
				own(m)
			}
		}
	}
	return of
}
