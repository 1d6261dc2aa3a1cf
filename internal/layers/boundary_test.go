package layers

import (
	"fmt"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The core of package bus runs a pipeline in one process. The other files take it to others:
// they are its boundary, to be packages of their own one day. Payloads and tensors are between
// the two. The boundary stands on the others, which use no name of its.
const (
	busCore = "batch buffer bus carry deadline delivery directory doc edge emit errors exchange floor flow graph options outlet output part remote " +
		"remote_detach remote_end request results sink stage stall stats task task_held tensor_transport typed worker worker_failed"
	busBetween  = "fed heard location payload tensor_emit tensor_figures wait"
	busBoundary = "circle direct_stats keeping offered server session session_call session_direct session_emit session_end session_locate session_parts session_source " +
		"session_stage session_stats session_submit session_turn session_underway " + // hosts
		"link link_ask link_parts link_payload link_report lost_gpu node node_figures node_serve node_stage node_submit " + // nodes
		"arrivals link_direct pair pair_payload pair_receive route " + // past the host
		"link_exchange node_exchange session_exchange session_exchange_wait " +
		"link_directory node_directory session_directory"
)

// busMet are the names of the core that the boundary meets: those that are not exported, and
// what floor.go declares. The fields of a struct of floor.go are met with it. A name more is a
// step away from two packages: let a method of floor.go do what it is for, or put what it says
// into what the core gives already.
const busMet = `
	Bus.abort Bus.admit Bus.check Bus.footing Bus.holders Bus.place Bus.station Bus.statuses
	Bus.watchStalls Delivery.discard Delivery.emittedFor Delivery.passOn Delivery.put Delivery.stream Emitter.close
	Emitter.copied Emitter.pressed Emitter.trying Request.end Request.feed Request.rooms Request.stream Request.turn
	StageError.textBeside StageSpec.checked emission errAfterEnd errCanceled floor footing opened opening optionsOf ordinal
	ordinal.count ordinal.went part part.open port posting posting.answered posting.asked posting.assign
	remote.attach remote.giveUp remote.served replica replica.begin replica.detach replica.retire sendOnly stream
	stream.endPast stream.goPast stream.past work work.finished work.orphaned
`

// mostMet bounds them.
const mostMet = 58

func TestBoundaryOfBus(t *testing.T) {
	met, strange := meetings(t, "", busBoundary)
	report(t, strange)
	report(t, checkMeetings(met))
	t.Logf("the boundary of bus meets %d names of the core; at most %d are allowed", len(met), mostMet)
}

func TestBoundaryCanFail(t *testing.T) {
	met, _ := meetings(t, `func (s *session) more(r *Request) bool { return r.wrecked() && s.srv.on.name != "" }`, busBoundary)
	delete(met, "Bus.place")
	broken := strings.Join(checkMeetings(met), "\n")
	for what, want := range map[string]bool{
		"bus/more.go meets Request.wrecked of the core,": true,
		"does not meet Bus.place of the core any more":   true,
		"footing.name": false,
	} {
		if strings.Contains(broken, what) != want {
			t.Errorf("it says %q: %v, want %v; it says\n%s", what, !want, want, broken)
		}
	}
	_, strange := meetings(t, `func (b *Bus) more() *session { return nil }`, busCore)
	if want := "bus/more.go uses session of bus/session.go"; !strings.Contains(strings.Join(strange, "\n"), want) {
		t.Errorf("it does not say %q of a core that knows a session; it says %q", want, strange)
	}
}

// checkMeetings compares what the boundary meets, and where, with what it may.
func checkMeetings(met map[string]string) (broken []string) {
	may := strings.Fields(busMet)
	if len(may) > mostMet {
		broken = append(broken, fmt.Sprintf("busMet in internal/layers/boundary_test.go lists %d names, and %d are allowed", len(may), mostMet))
	}
	for _, name := range slices.Sorted(maps.Keys(met)) {
		if !slices.Contains(may, name) {
			broken = append(broken, fmt.Sprintf("bus/%s.go meets %s of the core, which no other file of the boundary does: see busMet in internal/layers/boundary_test.go", met[name], name))
		}
	}
	for _, name := range may {
		if met[name] == "" {
			broken = append(broken, fmt.Sprintf("the boundary of bus does not meet %s of the core any more: take the name out of busMet in internal/layers/boundary_test.go", name))
		}
	}
	return broken
}

// meetings are the names of the core that files of the boundary use, each with one of them;
// and what is wrong with the table, or uses names
// of the boundary from below. A source is checked together with them, as bus/more.go of that side.
func meetings(t *testing.T, source, of string) (met map[string]string, strange []string) {
	t.Helper()
	p := readProgram(t)
	bus := p.named(t, "bus")
	if source != "" {
		f, err := parser.ParseFile(p.fset, "more.go", "package bus\n"+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if bus, err = p.check("bus", append(slices.Clone(bus.files), f)); err != nil {
			t.Fatal(err)
		}
	}
	pkg, files, info := bus.types, bus.files, bus.info
	side := make(map[string]string)
	for _, s := range []string{busCore, busBetween, busBoundary} {
		for _, name := range strings.Fields(s) {
			side[name] = s
		}
	}
	side["more"] = of
	at := func(pos token.Pos) string {
		return strings.TrimSuffix(filepath.Base(p.fset.Position(pos).Filename), ".go")
	}
	for _, f := range files {
		if name := at(f.Package); side[name] == "" {
			strange = append(strange, fmt.Sprintf("bus/%s.go is on no side of the boundary: add it to the tables of internal/layers/boundary_test.go", name))
		}
	}
	owner := owners(pkg)
	met = make(map[string]string)
	for id, obj := range info.Uses {
		from, to := side[at(id.Pos())], side[at(obj.Pos())]
		if obj.Pkg() == pkg && to == busBoundary && (from == busCore || from == busBetween) {
			strange = append(strange, fmt.Sprintf("bus/%s.go uses %s of bus/%s.go: what a boundary stands on does not know it", at(id.Pos()), obj.Name(), at(obj.Pos())))
		}
		if obj.Pkg() != pkg || to != busCore || from != busBoundary {
			continue
		}
		field := false
		switch o := obj.(type) {
		case *types.Var:
			obj, field = o.Origin(), o.IsField()
		case *types.Func:
			obj = o.Origin()
		}
		of, floor := owner[obj], at(obj.Pos()) == "floor"
		if of == "floor." { // of which a bus is one
			of, floor = "Bus.", false
		}
		switch {
		case of == "" && !field && obj.Parent() != pkg.Scope(): // a label
		case floor && field:
		case obj.Exported() && !floor:
		default:
			met[of+obj.Name()] = at(id.Pos())
		}
	}
	return met, strange
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
