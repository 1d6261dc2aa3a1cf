package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// findingHelp ends the help of every verb that talks to a host.
const findingHelp = `
The host is the one at --socket, or of the bus --bus, or at $OMNIBUS_SOCKET, and
else the only one that runs. Nothing is sent to a host of another user, root
too, unless --allow-uid names that user.`

// Timeouts of the connection to a host, and of its answer.
const (
	joinTimeout   = 10 * time.Second
	answerTimeout = 30 * time.Second
)

// within bounds a wait for a host. Its error says how long the wait was.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("nothing came within %v", limit))
}

// callOptions are those of a verb that sends no payload.
var callOptions = node.JoinOptions{Store: shmstore.Options{ArenaBytes: 64 << 10}, MaxRequests: 1}

// A finder has the flags that select a host, and the users that may own it.
type finder struct {
	bus, socket string
	uids        []uint
}

func (f *finder) addTo(cmd *cobra.Command) {
	cmd.Flags().Var((*filled)(&f.bus), "bus", "the host of the bus `NAME`")
	cmd.Flags().Var((*filled)(&f.socket), "socket", "the host at the socket `PATH`")
	cmd.Flags().UintSliceVar(&f.uids, "allow-uid", nil, "talk to a host of the user `UID` too, beside the own")
	cmd.Long += "\n" + findingHelp
}

// filled is a flag of text that refuses an empty value: an unset variable of a script must not
// select an arbitrary host.
type filled string

func (f *filled) String() string { return string(*f) }

func (f *filled) Type() string { return "string" }

func (f *filled) Set(text string) error {
	if text == "" {
		return errors.New("must not be empty: say which host, or leave it out")
	}
	*f = filled(text)
	return nil
}

// users are the numbers that --allow-uid gives.
func users(uids []uint) ([]uint32, error) {
	var all []uint32
	for _, uid := range uids {
		if uid >= math.MaxUint32 { // whose low bits are another user's
			return nil, &usageError{fmt.Sprintf("--allow-uid is %d, which no user has: use 0 to %d", uid, uint32(math.MaxUint32-1))}
		}
		all = append(all, uint32(uid))
	}
	return all, nil
}

// path returns the socket of the selected host.
func (f *finder) path() (string, error) {
	switch {
	case f.socket != "" && f.bus != "":
		return "", &usageError{"--bus and --socket both say which host is meant: keep one of them"}
	case f.socket != "":
		return f.socket, nil
	case f.bus != "":
		path, err := node.SocketPath(f.bus)
		if err != nil {
			return "", &usageError{fmt.Sprintf("--bus: %s (--socket)", strings.TrimPrefix(err.Error(), bus.ErrConfig.Error()+": "))}
		}
		return path, nil
	case os.Getenv(node.EnvSocket) != "":
		return os.Getenv(node.EnvSocket), nil
	}
	dir := node.SocketFolder()
	found, dead, err := sockets(dir)
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		why := "there is no socket in " + dir
		if dead > 0 {
			why = fmt.Sprintf("no process listens at any of the %d sockets in %s", dead, dir)
		}
		return "", fmt.Errorf("no host runs: %s; start one with `omnibus run FILE` or `omnibus exchange`, or name its socket with --socket", why)
	case len(found) > 1:
		return "", fmt.Errorf("several hosts run: choose one with --bus\n  %s", strings.Join(names(found), "\n  "))
	}
	return found[0], nil
}

// sockets lists the sockets of hosts in a folder. If there are several, those without a
// listener are only counted: a host that was killed leaves its socket.
func sockets(dir string) (live []string, dead int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	var all []string
	for _, e := range entries {
		host := strings.HasSuffix(e.Name(), ".sock") && !strings.HasSuffix(e.Name(), ".http.sock")
		if e.Type() == fs.ModeSocket && host {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	if len(all) < 2 {
		return all, 0, nil
	}
	for _, path := range all {
		c, err := net.Dial("unixpacket", path)
		if err == nil {
			_ = c.Close()
			live = append(live, path)
		}
	}
	return live, len(all) - len(live), nil
}

func names(sockets []string) []string {
	all := make([]string, len(sockets))
	for i, path := range sockets {
		all[i] = strings.TrimSuffix(filepath.Base(path), ".sock")
	}
	return all
}

// join connects to the selected host. The function that it returns disconnects.
func (f *finder) join(ctx context.Context, name string, opts node.JoinOptions) (*node.Node, func(), error) {
	path, err := f.path()
	if err != nil {
		return nil, nil, err
	}
	opts.Socket, opts.Bus = path, f.bus
	if opts.AllowUIDs, err = users(f.uids); err != nil {
		return nil, nil, err
	}
	joining, cancel := within(ctx, joinTimeout)
	defer cancel()
	node, err := node.Join(joining, name, opts)
	switch {
	case err != nil && strings.Contains(err.Error(), path):
		return nil, nil, err
	case err != nil:
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return node, func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), joinTimeout)
		defer cancel()
		_ = node.Close(closing) // the program ends in any case
	}, nil
}

// callFor calls a method of a node's host.
func callFor[T any](ctx context.Context, n *node.Node, method string, arguments any) (answer T, err error) {
	args, err := json.Marshal(arguments)
	if err != nil {
		return answer, err
	}
	raw, err := n.Call(ctx, method, args)
	if err != nil {
		return answer, fmt.Errorf("%s: %w", method, err)
	}
	if err = json.Unmarshal(raw, &answer); err != nil {
		err = fmt.Errorf("the host's answer to %s: %w", method, err)
	}
	return answer, err
}

// ask calls a method of the host, and prints the answer as a T, or unchanged with -o json.
func ask[T any](cmd *cobra.Command, f *finder, output *choice, method string, arguments any, show func(T) error) error {
	return askReported(cmd, f, output, method, arguments, func(T) bool { return false }, show)
}

// askReported is ask for figures that processes report to the host. If the answer lacks the report of a process, it
// calls the method once more.
func askReported[T any](cmd *cobra.Command, f *finder, output *choice, method string, arguments any, lacks func(T) bool, show func(T) error) error {
	n, leave, err := f.join(cmd.Context(), "omnibus "+cmd.Name(), callOptions)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := within(cmd.Context(), answerTimeout)
	defer cancel()
	answer, err := settled(ctx, func() (json.RawMessage, error) {
		return callFor[json.RawMessage](ctx, n, method, arguments)
	}, func(answer json.RawMessage) bool {
		var v T
		return json.Unmarshal(answer, &v) == nil && lacks(v)
	})
	if err != nil {
		return err
	}
	if output.word == outputJSON {
		return writeJSON(cmd.OutOrStdout(), answer)
	}
	var v T
	if err := json.Unmarshal(answer, &v); err != nil {
		return fmt.Errorf("the host's answer to %s: %w", method, err)
	}
	return show(v)
}

// reportWait is the time in which a running process sends its first report.
const reportWait = 300 * time.Millisecond

// settled calls a method, and again after reportWait if the answer lacks the report of a process.
func settled[T any](ctx context.Context, question func() (T, error), lacks func(T) bool) (T, error) {
	answer, err := question()
	if err != nil || !lacks(answer) {
		return answer, err
	}
	select {
	case <-time.After(reportWait):
		return question()
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// unreportedText says that an answer lacks the report of a process.
func unreportedText(pid int, name string) string {
	if name = printable(name, ""); name != "" {
		name = " (" + name + ")"
	}
	return fmt.Sprintf("process %d%s has not said what it has under way", pid, name)
}
