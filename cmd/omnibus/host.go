package main

import (
	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

// hostFlags are the flags of the verbs that run a host.
type hostFlags struct {
	opts   host.Options
	level  *choice
	format *choice
	wait   *choice
}

// add declares the flags. beside ends the help of flags that are also keys of a pipeline file.
func (f *hostFlags) add(cmd *cobra.Command, beside string) {
	f.level = newChoice("warn", "debug", "info", "error")
	f.format = newOutput()
	f.wait = &choice{"", waits()}
	cmd.Flags().StringVar(&f.opts.Socket, "socket", "", "listen at the socket `PATH`"+beside)
	cmd.Flags().StringVar(&f.opts.HTTP, "http", "", "serve metrics and health at `WHERE`: a loopback host:port, or the path of a socket")
	cmd.Flags().Var(f.wait, "wait", "how the processes wait for each other"+beside)
	cmd.Flags().Var(f.level, "log-level", "what is worth a line on standard error")
	cmd.Flags().Var(f.format, "log-format", "form of those lines")
}

// options are the host's options by the flags.
func (f *hostFlags) options(cmd *cobra.Command) host.Options {
	opts := f.opts
	opts.Wait = bus.Wait(f.wait.word)
	opts.Outlet = host.NewOutlet(cmd.ErrOrStderr())
	opts.Logger = newLogger(opts.Outlet, f.level.word, f.format.word)
	return opts
}
