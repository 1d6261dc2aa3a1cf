package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus/host"
)

func init() { addVerb(newLeasesCmd) }

func newLeasesCmd() *cobra.Command {
	var at finder
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "leases",
		Short: "List the payloads that processes hold, the oldest first",
		Long: `List the payloads that attached processes were given and have not finished, the
oldest first: the processes that hold memory. For payloads in the exchange the list
has the key, and the process that has placed or fetched them. A value of
omnibus connector put is lasting: it belongs to no process.

Four kinds are added up for each process, with the age of the oldest: payloads that
it has finished and keeps views of (in Python, copy what is kept for long); payloads
that it may read after the end of its connection, because it lives; payloads that
another process sent it directly before that process died; and payloads of its own
outside its arena, each in a segment made for it.`,
		Example: `  omnibus leases
  omnibus leases -o json | jq '.[] | select(.age_ns > 1e9)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lacks := func(all []host.Holding) bool { return slices.ContainsFunc(all, unreportedHolding) }
			return askReported(cmd, &at, output, "leases", nil, lacks, func(all []host.Holding) error {
				return writeLeases(cmd.OutOrStdout(), all)
			})
		},
	}
	at.addTo(cmd)
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}

func writeLeases(to io.Writer, all []host.Holding) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(to, "no process holds a payload")
		return err
	}
	t := &table{heading: []string{"AGE", "PID", "PROCESS", "HOLDS", "SEQ OR KEY", "BYTES", "REQUEST"}}
	var silent []string
	for _, l := range all {
		if unreportedHolding(l) {
			silent = append(silent, unreportedText(l.PID, l.Name)+"\n")
			continue
		}
		edgeFrom, edgeTo, _ := strings.Cut(l.Edge, "->")
		age, holds, which, request := timeText(l.Age), edgeText(edgeFrom, edgeTo), fmt.Sprint(l.Seq), l.Request.String()
		switch {
		case l.Exchange != "":
			which, request = strconv.Quote(l.Key), l.Exchange
		case l.Together != "":
			holds, which, request = togetherText(l), "-", "-"
			if l.Age == 0 {
				age = "-"
			}
		}
		t.add(age, pidText(l.PID), cmp.Or(l.Name, "-"), holds, which, sizeText(int64(l.Bytes)), request)
	}
	if err := t.write(to); err != nil {
		return err
	}
	_, err := io.WriteString(to, strings.Join(silent, ""))
	return err
}

func unreportedHolding(l host.Holding) bool { return l.Together == "unreported" }

// togetherText says what several payloads are.
func togetherText(l host.Holding) string {
	return plural(l.Payloads, "payload") + " " + cmp.Or(togetherTexts[l.Together], l.Together)
}

var togetherTexts = map[string]string{
	"kept":  "finished, views kept",
	"left":  "kept, connection over",
	"alone": "with memory of their own",
}

// pidText names a process, if there is one.
func pidText(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}
