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
	Process string             `json:"process"` // the process that runs it, for reports; empty: this process
	Request messages.RequestID `json:"request"`
	// Over is set when the request is over already: only the replica waits for the handler.
	Over bool          `json:"over"`
	For  time.Duration `json:"for_ns"` // the running time so far, without waits for the bus
	// Waits is the edge for whose window the handler waits, for the time For; empty: it runs.
	Waits string `json:"waits,omitempty"`
}

// String describes the handler in one sentence.
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

// Running lists the handlers that have not returned, by stage and replica. It takes the locks of a status,
// and sends no message: it also lists the handlers of a process that is stopped or hangs.
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

// attached lists the attached replicas.
func (r *RemoteStage) attached() []*Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Replica(nil), r.serving...)
}

// longRunning is the running time from which a report about a stage names the handler.
const longRunning = time.Second

// describeHandlers is the part of a report about a request at the stage that names the handlers that run for the
// request or have run for long; empty: there are none.
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
