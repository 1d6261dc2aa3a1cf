package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
	"github.com/omnibus-runtime/omnibus/config"
)

func init() { addVerb(newQueueCmd) }

const queueLong = `Own a tensor queue: a queue between processes, whose items carry tensors.

Programs join it by its name: omnibus.TensorQueue("NAME") in Python, tensorqueue.Join
in Go. The putting process decides how the tensors travel. An item lies in the memory of
the process that put it; this command needs no GPU.

When programs can join, the line "ready: ..." goes to standard error. The first interrupt
(or SIGTERM, or SIGHUP) closes the queue: waiting puts and gets return an error, taken
items stay valid, all others are dropped and counted. A second signal ends this process
at once, if it comes more than 200 ms later.`

const queueExample = `  omnibus queue tokenized
  omnibus queue tokenized --max-size 32 &`

// queueStoreBytes is the memory for items of this process, which puts none.
const queueStoreBytes = 1 << 20

// queueFlags replaces the names of options in errors by those of the flags.
var queueFlags = strings.NewReplacer(
	bus.ErrConfig.Error()+": ", "", "tensorqueue: open: ", "", "tensorqueue: ", "",
	"MaxSize", "--max-size", "MaxItemBytes", "--max-item-bytes",
)

func newQueueCmd() *cobra.Command {
	var opts tensorqueue.Options
	var uids []uint
	level := newChoice("warn", "debug", "info", "error")
	cmd := &cobra.Command{
		Use:     "queue [NAME]",
		Short:   "Own a tensor queue between processes",
		Long:    queueLong,
		Example: queueExample,
		Args:    upToOne("name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Name, opts.StoreBytes = tensorqueue.DefaultName, queueStoreBytes
			if len(args) == 1 {
				opts.Name = args[0]
			}
			if opts.Name == "" {
				return &usageError{fmt.Sprintf("the queue's name is empty: give one, or leave it out for %q", tensorqueue.DefaultName)}
			}
			if err := config.CheckName(opts.Name); err != nil { // its socket is a file of that name
				return &usageError{fmt.Sprintf("the queue's name: %v", err)}
			}
			if opts.Socket == "" {
				var err error
				if opts.Socket, err = node.SocketPath(opts.Name); err != nil {
					return err
				}
			}
			var err error
			if opts.AllowUIDs, err = users(uids); err != nil {
				return err
			}
			opts.Logger = newLogger(cmd.ErrOrStderr(), level.word, outputText)
			return ownQueue(cmd, opts)
		},
	}
	cmd.Flags().IntVar(&opts.MaxSize, "max-size", 0, fmt.Sprintf("how many items that have not been taken there may be; 0 means as many as memory holds, up to %d", tensorqueue.LargestSize))
	cmd.Flags().Int64Var(&opts.MaxItemBytes, "max-item-bytes", tensorqueue.DefaultItemBytes, "how many bytes of host memory an item may take")
	cmd.Flags().StringVar(&opts.Socket, "socket", "", "listen at the socket `PATH`")
	cmd.Flags().UintSliceVar(&uids, "allow-uid", nil, "let the user `UID` join, beside the own")
	cmd.Flags().Var(level, "log-level", "what is worth a line on standard error")
	return cmd
}

func ownQueue(cmd *cobra.Command, opts tensorqueue.Options) error {
	outliveReaders()
	ctx, stop := endedBySignal(cmd.Context(), echoWait, endsOfHosts()...)
	defer stop()
	q, err := tensorqueue.Open(ctx, opts)
	switch {
	case errors.Is(err, bus.ErrConfig):
		return &usageError{queueFlags.Replace(err.Error())}
	case err != nil:
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "ready: queue %s at %s, of %d items\n", opts.Name, opts.Socket, q.MaxSize())
	<-ctx.Done()
	left, err := q.Size(context.WithoutCancel(ctx))
	if err != nil {
		opts.Logger.Warn("cannot count what is left", slog.Any("err", err))
	}
	err = q.Close(context.WithoutCancel(ctx))
	fmt.Fprintf(cmd.ErrOrStderr(), "done: left in the queue, and dropped: %d\n", left)
	return err
}
