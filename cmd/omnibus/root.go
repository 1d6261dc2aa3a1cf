package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/internal/host"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitSignal = 128 // plus the number of the signal
)

// verbs are the constructors of the subcommands. The file of each verb adds
// its own in an init function, so that a verb is one file and nothing else.
var verbs []func() *cobra.Command

func addVerb(newCmd func() *cobra.Command) { verbs = append(verbs, newCmd) }

// errReported is the error of a verb that has printed its errors.
var errReported = errors.New("reported")

// An exitError is a failure with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

// A usageError is a mistake in the command line that only the verb can find.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

// oneArg requires one argument. Its error names the missing one.
func oneArg(question string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return errors.New(question)
		case 1:
			return nil
		}
		return fmt.Errorf("one at a time: what is %q?", args[1])
	}
}

// upToOne allows one argument, described by what.
func upToOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("one %s at most: what is %q?", what, args[1])
		}
		return nil
	}
}

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	// Until a verb starts, each error is a mistake in the command line: cobra
	// does not mark those in another way.
	started := false
	root := newRootCmd(func() { started = true })
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	lost := watchHelp(root)
	cmd, err := root.ExecuteC()
	err = withAdvice(errors.Join(err, lost()), sizeSetting(cmd))
	text := ""
	if err != nil {
		text = printable(err.Error(), "\n\t")
	}

	last := host.NewOutlet(stderr)
	last.Hurry() // the exit follows
	var usage *usageError
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		if !errors.Is(err, errReported) {
			fmt.Fprintf(last, "omnibus: %s\n", text)
		}
		return exit.code
	case errors.Is(err, errReported):
		return exitFailed
	case !started || errors.As(err, &usage):
		fmt.Fprintf(last, "omnibus: %s\nRun '%s --help' for usage.\n", text, cmd.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(last, "omnibus: %s\n", text)
		return exitFailed
	}
}

// watchHelp returns a function that returns the error of printing the help, which cobra
// does not check.
func watchHelp(root *cobra.Command) (lost func() error) {
	help := root.HelpFunc()
	var failed error
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		if _, err := out.Write(text.Bytes()); err != nil {
			failed = &exitError{exitFailed, err}
		}
	})
	return func() error { return failed }
}

// withAdvice adds a remedy to an error that a limit of the system has caused, in this process or the host.
// The setting is the flag or key of the size of the verb's store, if it has one.
func withAdvice(err error, setting string) error {
	if errors.Is(err, shmstore.ErrMemory) && setting != "" && !strings.Contains(err.Error(), setting) {
		return fmt.Errorf("%w; %s is its size", err, setting)
	}
	l, met := limits.Met(err)
	if !met {
		return err
	}
	err = limits.Explain(err)
	if advice := "make the store smaller (" + setting + ")"; l.Memory && setting != "" && !strings.Contains(err.Error(), advice) {
		err = fmt.Errorf("%w, or %s", err, advice)
	}
	return err
}

// sizeSetting is the flag or key of the size of a verb's store; "": there is none.
func sizeSetting(cmd *cobra.Command) string {
	if cmd.Name() == "run" {
		return "ring_bytes"
	}
	return ""
}

// printable removes control characters except those of keep: parts of the text come from other
// programs.
func printable(text, kept string) string {
	var out strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) || strings.ContainsRune(kept, r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

func newRootCmd(onStart func()) *cobra.Command {
	root := &cobra.Command{
		Use:   "omnibus",
		Short: "Run, watch and check pipelines of a message bus",
		Args:  knownVerb,
		RunE: func(*cobra.Command, []string) error {
			return &usageError{"which command?"}
		},
		PersistentPreRun: func(*cobra.Command, []string) { onStart() },
		SilenceErrors:    true,
		SilenceUsage:     true,
		// A suggestion differs in at most so many letters.
		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return inWords(err) })
	for _, newCmd := range verbs {
		root.AddCommand(newCmd())
	}
	requireShell(root)
	requireTopic(root)
	completeWords(root)
	return root
}

// completeWords has shells complete the words of flags that take one of a few.
func completeWords(cmd *cobra.Command) {
	for _, name := range []string{"output", "format", "codec", "log-level", "log-format"} {
		f := cmd.Flags().Lookup(name)
		if f == nil {
			continue
		}
		if c, ok := f.Value.(*choice); ok {
			words := cobra.FixedCompletions(c.words, cobra.ShellCompDirectiveNoFileComp)
			if err := cmd.RegisterFlagCompletionFunc(name, words); err != nil {
				panic(err) // the flag has some already
			}
		}
	}
	for _, verb := range cmd.Commands() {
		completeWords(verb)
	}
}

// requireShell makes the completion verb refuse a missing or unknown shell,
// which cobra answers with help and success.
func requireShell(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.RunE = func(*cobra.Command, []string) error {
				return &usageError{"which shell?"}
			}
		}
	}
}

// requireTopic makes the help verb refuse an unknown command, for which cobra prints the help of
// another one and reports success.
func requireTopic(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			cmd.Args = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err != nil {
					return err
				}
				return knownVerb(about, rest)
			}
		}
	}
}

// knownVerb refuses a command line whose first word is no verb.
func knownVerb(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg, near := fmt.Sprintf("unknown command %q", args[0]), root.SuggestionsFor(args[0])
	switch {
	case args[0] == "bench" && !root.HasParent():
		msg += ": the benchmarks are a module of their own, bench: run `go -C bench run ./cmd/omnibus-bench` in a checkout of the repository"
	case len(near) > 0 && near[0] == args[0]:
		msg = fmt.Sprintf("what stands behind -- is no command: write %s %s without it", root.CommandPath(), args[0])
	case len(near) > 0:
		msg += fmt.Sprintf(": is %q meant?", near[0])
	}
	return errors.New(msg)
}
