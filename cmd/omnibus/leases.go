package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/messages"
)

func init() { addVerb(newLeasesCmd) }

func newLeasesCmd() *cobra.Command {
	var at finder
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "leases",
		Short: "List the payloads that processes hold, the oldest first",
		Long: `List the payloads that attached processes were given and have not finished, the
oldest first: who to ask when memory does not come back. Of payloads in the
exchange it says the key, and whether the process has placed them, and nobody has
fetched them yet, or has fetched them. What omnibus connector put left there is
lasting, and nobody's.`,
		Example: `  omnibus leases
  omnibus leases -o json | jq '.[] | select(.age_ns > 1e9)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, &at, output, "leases", nil, func(all []bus.Holding) error {
				t := &table{heading: []string{"AGE", "PID", "PROCESS", "HOLDS", "SEQ OR KEY", "BYTES", "REQUEST"}}
				for _, l := range all {
					from, to, _ := strings.Cut(l.Edge, "->")
					if l.Exchange != "" {
						t.add(timeText(l.Age), pidText(l.PID), cmp.Or(l.Name, "-"), edgeText(from, to), strconv.Quote(l.Key), sizeText(int64(l.Bytes)), l.Exchange)
						continue
					}
					t.add(timeText(l.Age), pidText(l.PID), cmp.Or(l.Name, "-"), edgeText(from, to), l.Seq, sizeText(int64(l.Bytes)), messages.RequestID(l.Request))
				}
				if len(all) == 0 {
					_, err := fmt.Fprintln(cmd.OutOrStdout(), "no process holds a payload")
					return err
				}
				return t.write(cmd.OutOrStdout())
			})
		},
	}
	at.addTo(cmd)
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}

// pidText names a process, if there is one.
func pidText(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}
