package bus_test

import (
	"bytes"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestAnswersAreForPrograms: a list of which nothing is there is an empty one, and the
// names of edges are as everywhere.
func TestAnswersAreForPrograms(t *testing.T) {
	h := listen(t, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "a", Remote: &bus.Remote{}}, {Name: "b", Remote: &bus.Remote{}}},
		Edges:  []bus.Edge{{From: "a", To: "b"}},
	}, bus.Options{})
	n := h.join(t, bus.JoinOptions{})
	for _, method := range []string{"status", "stats", "stalls", "check", "leases"} {
		answer, err := n.Call(t.Context(), method, nil)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		for _, bad := range []string{"null", `\u003e`, "\n"} {
			if bytes.Contains(answer, []byte(bad)) {
				t.Errorf("the answer to %s has %q: %s", method, bad, answer)
			}
		}
	}
}
