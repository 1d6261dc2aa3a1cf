package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	bushost "github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

func init() { addVerb(newStatusCmd) }

func newStatusCmd() *cobra.Command {
	var at finder
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what a running pipeline is doing",
		Long: `Show the stages and processes of a running pipeline, what is under way on its
edges, and what each request waits for. A bus is embedded where its host is another
program than omnibus run.

WINDOW is what one request may have under way on an edge, in deliveries and bytes;
UNDER WAY and QUEUED are sums over all requests: what was sent and is not finished,
and what waits for credit. A LANE is what goes from one process to another past the
host; EDGE counts that too. P50 and P99 are from sent to handled.`,
		Example: `  omnibus status
  omnibus status --bus speech -o json | jq .requests`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lacks := func(s host.Status) bool { return slices.ContainsFunc(s.Processes, unreported) }
			return askReported(cmd, &at, output, "status", nil, lacks, func(s host.Status) error {
				return writeStatus(cmd.OutOrStdout(), &s)
			})
		},
	}
	at.addTo(cmd)
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}

// caller names the submitter of requests at the ends of edges.
const caller = "caller"

func writeStatus(to io.Writer, s *host.Status) error {
	var out strings.Builder
	fmt.Fprintf(&out, "bus %s, %s, process %d, up %s\n", s.Bus, cmp.Or(s.Phase, "embedded"), s.PID, timeText(s.Age))
	fmt.Fprintf(&out, "socket %s\n", s.Socket)
	if s.HTTP != "" {
		fmt.Fprintf(&out, "http   %s\n", s.HTTP)
	}
	for _, t := range []*table{stageTable(s), processTable(s), handlerTable(s), waitTable(s), sentTable(s), laneTable(s), requestTable(s)} {
		if len(t.rows) > 0 {
			out.WriteByte('\n')
		}
		if err := t.write(&out); err != nil {
			return err
		}
	}
	for _, p := range s.Processes {
		if unreported(p) {
			fmt.Fprintf(&out, "\n%s\n", unreportedText(p.PID, p.Name))
		}
	}
	for _, c := range s.Children {
		if len(c.Lines) > 0 {
			fmt.Fprintf(&out, "\nthe last lines of %s, which is not started again:\n  %s\n", c.Name, strings.Join(c.Lines, "\n  "))
		}
	}
	st := &s.Stats
	fmt.Fprintf(&out, "\nrequests  %d live, %d completed, %d failed, %d aborted, %d past their deadline\n",
		st.Live, st.Completed, st.Failed, st.Aborted, st.Deadline)
	fmt.Fprintf(&out, "store     %s of %s used, %s\n",
		sizeText(st.Store.ArenaBytes-st.Store.FreeBytes), sizeText(st.Store.ArenaBytes), plural(st.Store.Objects, "payload"))
	if x := st.Exchange; x != (bus.ExchangeStats{}) {
		fmt.Fprintf(&out, "exchange  %s, %s, %d swept\n", plural(x.Entries, "payload"), sizeText(x.Bytes), x.Swept)
	}
	_, err := io.WriteString(to, out.String())
	return err
}

func unreported(p bushost.ProcessStats) bool { return p.Unreported }

func stageTable(s *host.Status) *table {
	t := &table{heading: []string{"STAGE", "PROCESSES", "SLOTS TAKEN", "QUEUED", ""}}
	served := make(map[string]host.StageStatus)
	for _, st := range s.Stages {
		served[st.Stage] = st
	}
	for _, st := range s.Stats.Stages {
		by := served[st.Name]
		processes, note := "in the host", ""
		switch {
		case by.Expected > 0:
			processes = fmt.Sprintf("%d of %d", st.Serving, by.Expected)
		case st.Remote:
			processes = fmt.Sprintf("%d attached", st.Serving)
		}
		switch {
		case by.GivenUp:
			note = "given up: requests that need it fail"
		case st.Remote && st.Serving == 0:
			note = "no process serves it: requests wait"
		case st.HandleTimeouts > 0:
			note = plural(int(st.HandleTimeouts), "handler") + " ran for longer than handle_timeout"
		case st.AdmittedAbove > 0:
			note = fmt.Sprintf("%d let in above its slots: requests waited for each other in a circle", st.AdmittedAbove)
		}
		t.add(st.Name, processes, fmt.Sprintf("%d of %d", st.Slots-st.SlotsFree, st.Slots), st.Queued, note)
	}
	return t
}

// processTable lists the processes that the host started, and then the attached
// ones.
func processTable(s *host.Status) *table {
	t := &table{heading: []string{"PROCESS", "PID", "STATE", "FOR", "RESTARTS", "HOLDS", "REQUESTS", "ARENA", "LAST EXIT"}}
	others := slices.DeleteFunc(slices.Clone(s.Processes), func(p bushost.ProcessStats) bool { return p.PID == os.Getpid() }) // this command
	for _, c := range s.Children {
		var held, requests int
		var arena bushost.ArenaStats
		state := c.State
		theirs := func(p bushost.ProcessStats) bool { // a process may attach several times, or by a child
			return p.PID == c.PID || slices.Contains(p.Stages, c.Name)
		}
		for _, p := range others {
			if !theirs(p) {
				continue
			}
			held, requests = held+p.Held, requests+p.Requests
			arena.Bytes, arena.Used = arena.Bytes+p.Arena.Bytes, arena.Used+p.Arena.Used
			if p.Stopped {
				state = "stopped (SIGSTOP)"
			}
		}
		others = slices.DeleteFunc(others, theirs)
		pid := "-"
		if c.PID != 0 {
			pid = fmt.Sprint(c.PID)
		}
		t.add(c.Name, pid, state, timeText(c.For), c.Restarts, held, requests, arenaText(arena), lastExit(c))
	}
	for _, p := range others {
		state := "attached"
		if p.Stopped {
			state = "stopped (SIGSTOP)"
		}
		t.add(processText(p), p.PID, state, timeText(p.Age), "-", p.Held, p.Requests, arenaText(p.Arena), "-")
	}
	return t
}

// longHandler is the running time from which on the status shows a handler.
const longHandler = time.Second

// handlerTable lists the handlers that run for longHandler or more.
func handlerTable(s *host.Status) *table {
	t := &table{heading: []string{"HANDLER", "PROCESS", "REQUEST", "FOR", ""}}
	for _, h := range s.Handlers {
		note := ""
		switch {
		case h.For < longHandler:
			continue
		case h.Waits != "":
			note = "waits for the window of " + h.Waits
		case h.Over:
			note = "the request is over"
		}
		t.add(fmt.Sprintf("%s/%d", h.Stage, h.Replica), cmp.Or(h.Process, "the host"), h.Request, timeText(h.For), note)
	}
	return t
}

// lastExit is the reason for the last end of a process, and for the missing restart.
func lastExit(c host.ChildStatus) string {
	if c.Error != "" {
		return fmt.Sprintf("%s (given up: %s)", c.LastExit, c.Error)
	}
	return cmp.Or(c.LastExit, "-")
}

func arenaText(a bushost.ArenaStats) string {
	if a.Bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%s of %s", sizeText(a.Used), sizeText(a.Bytes))
}

// waitTable lists the deliveries in flight on each edge, and sentTable the sent ones: one
// table would be wider than a terminal.
func waitTable(s *host.Status) *table {
	t := &table{heading: []string{"EDGE", "WINDOW", "UNDER WAY", "QUEUED", "DROPPED"}}
	sums := s.UnderWay()
	for _, e := range sortedEdges(s) {
		sum := sums[e.From+"->"+e.To]
		window := sizeText(e.WindowBytes)
		if e.Window > 0 {
			window = fmt.Sprintf("%d, %s", e.Window, window)
		}
		t.add(edgeText(e.From, e.To), window, underWayText(sum.Deliveries, sum.Bytes), sum.Queued, e.Dropped)
	}
	return t
}

func sentTable(s *host.Status) *table {
	t := &table{heading: []string{"EDGE", "DELIVERED", "BYTES", "P50", "P99"}}
	for _, e := range sortedEdges(s) {
		t.add(edgeText(e.From, e.To), e.Deliveries, sizeText(e.Bytes), timeText(e.P50), timeText(e.P99))
	}
	return t
}

// sortedEdges has inputs first and results last.
func sortedEdges(s *host.Status) []bus.EdgeStats {
	edges := slices.Clone(s.Stats.Edges)
	slices.SortStableFunc(edges, func(a, b bus.EdgeStats) int { return position(a) - position(b) })
	return edges
}

// laneTable lists the direct paths between processes.
func laneTable(s *host.Status) *table {
	t := &table{heading: []string{"LANE", "STREAMS", "UNDER WAY", "QUEUED", "DELIVERED", "BYTES"}}
	names := make(map[uint32]string)
	for _, p := range s.Processes {
		names[p.Node] = processText(p)
	}
	for _, l := range s.Lanes {
		t.add(names[l.From]+" -> "+names[l.To], l.Streams, underWayText(l.InFlight, l.InFlightBytes), l.Queued, l.Deliveries, sizeText(l.Bytes))
	}
	return t
}

func processText(p bushost.ProcessStats) string { return cmp.Or(host.ProcessName(p), "-") }

func underWayText(deliveries int, bytes int64) string {
	if deliveries == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, %s", deliveries, sizeText(bytes))
}

// position puts inputs first and results last.
func position(e bus.EdgeStats) int {
	switch {
	case e.From == "":
		return 0
	case e.To == "":
		return 2
	}
	return 1
}

func edgeText(from, to string) string { return cmp.Or(from, caller) + " -> " + cmp.Or(to, caller) }

func requestTable(s *host.Status) *table {
	t := &table{heading: []string{"REQUEST", "AGE", "UNDER WAY", "WAITS FOR"}}
	for _, r := range s.Requests {
		var deliveries int
		var bytes int64
		for _, e := range r.Edges {
			deliveries, bytes = deliveries+e.Deliveries, bytes+e.Bytes
		}
		_, waits, found := strings.Cut(r.State, "): ")
		if !found {
			waits = r.State
		}
		t.add(r.ID, timeText(r.Age), underWayText(deliveries, bytes), waits)
	}
	return t
}
