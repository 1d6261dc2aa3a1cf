package bus

import (
	"fmt"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/messages"
)

// RunningHandler is a handler that has not returned.
type RunningHandler struct {
	Stage   string             `json:"stage"`
	Replica int                `json:"replica"`
	Process string             `json:"process"` // that runs it, for people; empty: this one
	Request messages.RequestID `json:"request"`
	// Over is set when the request is over already: nothing waits for the handler but its replica.
	Over bool          `json:"over"`
	For  time.Duration `json:"for_ns"` // so far, without the time in which it waited for the bus
	// Waits is the edge for whose window the handler waits, for so long; empty: it runs.
	Waits string `json:"waits,omitempty"`
}

// String says it for people.
func (h RunningHandler) String() string {
	return fmt.Sprintf("stage %q, %s: a handler has %s for request %v%s", h.Stage, h.where(), h.does(), h.Request, h.ended())
}

func (h RunningHandler) where() string {
	if h.Process == "" {
		return fmt.Sprintf("replica %d", h.Replica)
	}
	return fmt.Sprintf("replica %d, %s", h.Replica, h.Process)
}

func (h RunningHandler) does() string {
	if h.Waits != "" {
		return fmt.Sprintf("waited for the window of edge %s for %v", h.Waits, h.For.Round(time.Millisecond))
	}
	return fmt.Sprintf("run for %v", h.For.Round(time.Millisecond))
}

func (h RunningHandler) ended() string {
	if h.Over {
		return ", which is over"
	}
	return ""
}

// Running lists the handlers that have not returned, by stage and replica. It takes the locks that a status
// takes, and asks no process: also one that is stopped, or hangs, is seen.
func (b *Bus) Running() (all []RunningHandler) {
	for _, st := range b.graph.stages {
		all = append(all, st.running(b)...)
	}
	return all
}

// running lists the handlers of the stage.
func (st *stage) running(b *Bus) (all []RunningHandler) {
	add := func(replica int, process string, a scoreboard.Activity) {
		h := RunningHandler{Stage: st.spec.Name, Replica: replica, Process: process, Request: messages.RequestID(a.Request), For: a.For}
		r := b.request(h.Request)
		h.Over = r == nil || r.over()
		if a.Edge >= 0 && a.Edge < len(st.out) {
			h.Waits = st.out[a.Edge].name
		}
		all = append(all, h)
	}
	if st.remote != nil {
		for _, rep := range st.remote.attached() {
			for _, a := range rep.conn.Running(rep) {
				add(rep.Number, rep.conn.Describe(), a)
			}
		}
		return all
	}
	for replica, t := range st.handlerLocks {
		if a, runs := t.runs.Read(); runs {
			add(replica, "", a)
		}
	}
	return all
}

// attached lists the replicas that have not gone.
func (r *RemoteStage) attached() []*Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Replica(nil), r.serving...)
}

// longRunning is how long a handler has to run for a text about its stage to name it.
const longRunning = time.Second

// describeHandlers goes on in a text about a request at the stage with handlers that have run for long, or run for the
// request; empty: none does.
func (st *stage) describeHandlers(r *Request) string {
	var long strings.Builder
	for _, h := range st.running(r.bus) {
		switch {
		case h.Waits != "":
		case h.Request == r.id:
			fmt.Fprintf(&long, "; its handler at %s has %s", h.where(), h.does())
		case h.For >= longRunning:
			fmt.Fprintf(&long, "; a handler at %s has %s for request %v%s", h.where(), h.does(), h.Request, h.ended())
		}
	}
	return long.String()
}
