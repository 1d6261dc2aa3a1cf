package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

var edge = connector.Edge{From: "thinker", To: "talker"}

// childOf names the engine and the settings of the transport that a child serves.
const childOf = "OMNIBUS_BRIDGE_CHILD"

func TestMain(m *testing.M) {
	if of := os.Getenv(childOf); of != "" {
		engine, extra, _ := strings.Cut(of, " ")
		if err := serve(engine, extra); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	client, err := filepath.Abs(filepath.Join("..", "..", "clients", "python", "src"))
	if err == nil { // for bridges
		err = os.Setenv("PYTHONPATH", client+string(filepath.ListSeparator)+os.Getenv("PYTHONPATH"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	for _, s := range servers {
		s.close()
	}
	os.Exit(code)
}

func serve(engine, extra string) error {
	var settings map[string]any
	if err := json.Unmarshal([]byte(extra), &settings); err != nil {
		return err
	}
	end, err := openEngine(context.Background(), engine, settings)
	if err != nil {
		return err
	}
	err = connectortest.Serve(os.Stdin, os.Stdout, end)
	return errors.Join(err, end.Close())
}

// typeOf maps an engine to the name of its type.
var typeOf = map[string]string{mooncake: "MooncakeStoreConnector", yuanrong: "YuanrongConnector", nixl: "NixlConnector", transfer: "MooncakeTransferEngineConnector", folder: "MooncakeStoreConnector"}

// folder is the store of testdata/folder.py, which tests the bridge alone, also where no package of
// an engine is installed.
const folder = "folder"

func openEngine(ctx context.Context, engine string, extra map[string]any) (connector.Transport, error) {
	for _, typ := range Types() {
		if typ.Name == typeOf[engine] {
			settings, err := typ.Settings(extra)
			if err != nil {
				return nil, err
			}
			return typ.Open(ctx, connector.Config{Settings: settings, Log: discard})
		}
	}
	return nil, connector.ErrUnknown
}

// A server is a store that clients/python/tests/storeserver.py has started.
type server struct {
	extra map[string]any
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
}

var servers = make(map[string]*server)

// shared returns an engine's server, which all tests share, or skips the test.
func shared(t *testing.T, engine string) *server {
	t.Helper()
	if testing.Short() && engine != folder {
		t.Skip("the bridge treats all engines alike, and the engine of files is fast")
	}
	s := servers[engine]
	if s == nil && engine == folder {
		return &server{extra: map[string]any{"master": t.TempDir(), "python": inFolders(t)}}
	}
	if s == nil {
		s = startServer(t, engine)
		servers[engine] = s
	}
	return s
}

// inFolders returns an interpreter whose bridges put values into a folder.
func inFolders(t *testing.T) string {
	t.Helper()
	program, err := filepath.Abs(filepath.Join("testdata", "folder.py"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := pythontest.Command(t, program)
	python := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(python, fmt.Appendf(nil, "#!/bin/sh\nexec %q %q \"$@\"\n", cmd.Path, program), 0o755); err != nil {
		t.Fatal(err)
	}
	return python
}

func startServer(t *testing.T, engine string) *server {
	t.Helper()
	s := &server{cmd: pythontest.Command(t, filepath.Join("..", "..", "clients", "python", "tests", "storeserver.py"), engine)}
	in, inErr := s.cmd.StdinPipe()
	out, outErr := s.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, s.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	s.in, s.out = in, bufio.NewReader(out)
	var said struct {
		Skip, Python string
		Extra        map[string]any
	}
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &said); err != nil {
		t.Fatal(err)
	}
	if said.Skip != "" {
		s.close()
		t.Skip(said.Skip)
	}
	s.extra = said.Extra
	s.extra[optPython] = said.Python
	return s
}

// do sends a command to the server: kill, start, stop or resume.
func (s *server) do(t *testing.T, what string) {
	t.Helper()
	if _, err := fmt.Fprintf(s.in, "%q\n", what); err != nil {
		t.Fatal(err)
	}
	if _, err := s.out.ReadBytes('\n'); err != nil {
		t.Fatal(err)
	}
}

func (s *server) close() {
	_ = s.in.Close()
	_ = s.cmd.Wait()
}

// with returns the settings, with some replaced.
func (s *server) with(more map[string]any) map[string]any {
	extra := maps.Clone(s.extra)
	maps.Copy(extra, more)
	return extra
}

func (s *server) open(t *testing.T, engine string, more map[string]any) *transport {
	t.Helper()
	end, err := openEngine(t.Context(), engine, s.with(more))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end.Close(); err != nil {
			t.Error(err)
		}
	})
	own, ok := end.(*transport)
	if !ok {
		t.Fatalf("opened a %T", end)
	}
	return own
}

// each runs a test for each engine.
func each(t *testing.T, test func(t *testing.T, engine string)) {
	for _, engine := range []string{folder, nixl, transfer} {
		t.Run(engine, func(t *testing.T) { test(t, engine) })
	}
	eachServer(t, test)
}

// eachServer runs a test for each engine that has a server.
func eachServer(t *testing.T, test func(t *testing.T, engine string)) {
	for _, engine := range []string{mooncake, yuanrong} {
		t.Run(engine, func(t *testing.T) { test(t, engine) })
	}
}

// suite runs the suite with the properties of an engine.
func suite(t *testing.T, engine string, ends connectortest.Ends) {
	ends.MetadataUnique, ends.Addressed = engine == nixl, isPeer(engine)
	connectortest.Run(t, ends)
}

// TestTransport runs the suite with both ends in one process, over one bridge.
func TestTransport(t *testing.T) {
	each(t, func(t *testing.T, engine string) {
		s := shared(t, engine)
		s.open(t, engine, nil) // keeps the bridge running
		suite(t, engine, connectortest.Ends{Open: func(t *testing.T) (put, get connector.Transport) {
			return s.open(t, engine, nil), s.open(t, engine, nil)
		}})
	})
}

// isPeer reports whether values of an engine stay in the memory of their producer.
func isPeer(engine string) bool { return engine == nixl || engine == transfer }

// eachPeer runs a test for each engine for which isPeer is true.
func eachPeer(t *testing.T, test func(t *testing.T, engine string)) {
	for _, engine := range []string{nixl, transfer} {
		t.Run(engine, func(t *testing.T) { test(t, engine) })
	}
}

// TestTwoBridges runs the suite with a bridge for each end; the bridges have to reach each other.
func TestTwoBridges(t *testing.T) {
	eachPeer(t, func(t *testing.T, engine string) {
		s := shared(t, engine)
		other := map[string]any{"timeout": 29}
		s.open(t, engine, nil) // keeps the bridges running
		s.open(t, engine, other)
		suite(t, engine, connectortest.Ends{ByMetadata: true, Open: func(t *testing.T) (put, get connector.Transport) {
			return s.open(t, engine, nil), s.open(t, engine, other)
		}})
	})
}

// TestProcesses runs the suite across processes, each with its own bridge, and kills them.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts many processes")
	}
	each(t, func(t *testing.T, engine string) {
		s := shared(t, engine)
		extra, err := json.Marshal(s.extra)
		if err != nil {
			t.Fatal(err)
		}
		spawn := func(t *testing.T) connector.Transport {
			return connectortest.Spawn(t, false, childOf+"="+engine+" "+string(extra))
		}
		suite(t, engine, connectortest.Ends{ByMetadata: isPeer(engine), Next: spawn, Open: func(t *testing.T) (put, get connector.Transport) {
			return spawn(t), spawn(t)
		}})
	})
}

// lastMeta holds the metadata of the last put of a key, for engines without a server.
var lastMeta = make(map[string]connector.Metadata)

func metaOf(end *transport, key string) connector.Metadata {
	if isPeer(end.process.engine) {
		return lastMeta[key]
	}
	return nil
}

func put(t *testing.T, end *transport, key string, value []byte) {
	t.Helper()
	meta, err := end.Put(t.Context(), edge, key, len(value), writes(value))
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	lastMeta[key] = meta
}

func writes(value []byte) func([]byte) error {
	return func(dst []byte) error { copy(dst, value); return nil }
}

func get(t *testing.T, end *transport, key string, want []byte) {
	t.Helper()
	got, err := end.Get(t.Context(), edge, key, metaOf(end, key))
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	defer got.Release()
	if !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("get %q: %d bytes that are not the %d that were put", key, len(got.Bytes()), len(want))
	}
}

func wantNone(t *testing.T, end *transport, key string) {
	t.Helper()
	if _, err := end.Get(t.Context(), edge, key, metaOf(end, key)); !errors.Is(err, connector.ErrNotFound) {
		t.Fatalf("get %q: %v, want ErrNotFound", key, err)
	}
}

// bridge returns the process of a transport's bridge.
func bridge(t *testing.T, end *transport) *os.Process {
	t.Helper()
	l, err := end.process.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l.cmd.Process
}

// TestBridgeDies: calls at a bridge that dies fail, with an error that says so; later calls reach a
// new bridge. A failed put leaves no value.
func TestBridgeDies(t *testing.T) {
	each(t, func(t *testing.T, engine string) {
		s := shared(t, engine)
		end, other := s.open(t, engine, map[string]any{"timeout": 20}), s.open(t, engine, map[string]any{"timeout": 21})
		old := bridge(t, end)
		put(t, end, "before", []byte("value"))
		put(t, other, "others", []byte("value"))

		halt(t, old)
		failed, over := make(chan error), make(chan error)
		begun := make(chan struct{})
		go func() {
			_, err := end.Put(t.Context(), edge, "failed", 5, func(dst []byte) error { close(begun); return nil })
			failed <- err
		}()
		go func() {
			_, err := end.Get(t.Context(), edge, "before", nil)
			over <- err
		}()
		<-begun
		for len(end.process.calls) < 2 { // until the bridge has both calls
			runtime.Gosched()
		}
		if err := old.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{<-failed, <-over} {
			if !errors.Is(err, connector.ErrUnavailable) || !errors.Is(err, errBridgeDied) || !strings.Contains(err.Error(), end.process.engine) {
				t.Errorf("a call that the bridge had when it died: %v", err)
			}
		}
		wantNone(t, end, "failed")
		if bridge(t, end).Pid == old.Pid {
			t.Error("no other bridge was started")
		}
		get(t, end, "others", []byte("value"))
		// Values in Mooncake's client are lost with the bridge; Yuanrong's worker keeps them.
		got, err := end.Get(t.Context(), edge, "before", nil)
		switch {
		case err == nil:
			got.Release()
		case !errors.Is(err, connector.ErrNotFound) && !errors.Is(err, connector.ErrUnavailable):
			t.Errorf("get of what a bridge had put that died: %v", err)
		}
		put(t, end, "failed", []byte("again"))
		get(t, end, "failed", []byte("again"))
	})
}

// halt stops a bridge, and returns when all of its threads have stopped.
func halt(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	}
	if err != nil {
		t.Fatalf("wait until process %d is stopped: %v", p.Pid, err)
	}
}

// stop stops the bridge of an end until resume is called.
func stop(t *testing.T, end *transport) (resume func()) {
	t.Helper()
	stopped := bridge(t, end)
	halt(t, stopped)
	hung := time.AfterFunc(10*time.Second, func() { _ = stopped.Signal(syscall.SIGCONT) }) // otherwise a failed test would leave it stopped
	return func() {
		hung.Stop()
		if err := stopped.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTimedOutCallsAreUndone: a put whose deadline passes while the bridge is stopped is undone
// when the bridge resumes, and a value that such a get consumed is put back.
func TestTimedOutCallsAreUndone(t *testing.T) {
	each(t, func(t *testing.T, engine string) {
		s := shared(t, engine)
		end, other := s.open(t, engine, map[string]any{"timeout": 20}), s.open(t, engine, nil)
		put(t, other, "early", []byte("value"))
		resume := stop(t, end)
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, put := end.Put(short, edge, "late", 5, writes([]byte("value")))
		short, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, got := end.Get(short, edge, "early", metaOf(end, "early"))
		for _, err := range []error{put, got} {
			if !errors.Is(err, connector.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), end.process.engine) {
				t.Errorf("a call without an answer: %v", err)
			}
		}
		resume()
		for len(end.process.calls) > 0 { // until both calls have their answers and the follow-up calls have ended
			runtime.Gosched()
		}
		wantNone(t, end, "late") // waits until the put has been undone
		wantNone(t, other, "late")
		waits, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if isPeer(engine) { // the value is put back into the bridge that consumed it
			other = end
		}
		p, err := other.Await(waits, edge, "early", metaOf(end, "early"))
		if err != nil {
			t.Fatalf("a value that was got in vain: %v", err)
		}
		if string(p.Bytes()) != "value" {
			t.Errorf("it is %q now", p.Bytes())
		}
		p.Release()
	})
}

// TestLanes: sequential calls use one thread of the bridge; at most as many calls as it has threads
// run at a time, and a further call whose deadline passes is never sent.
func TestLanes(t *testing.T) {
	end := shared(t, folder).open(t, folder, map[string]any{"timeout": 20})
	l, err := end.process.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range lanes + 1 {
		put(t, end, "value", []byte("value"))
		get(t, end, "value", []byte("value"))
	}
	if !slices.Equal(l.idle, l.lanes) {
		t.Error("calls one after the other have several threads")
	}

	resume := stop(t, end)
	answers := make(chan error)
	for i := range lanes {
		go func() {
			_, err := end.Put(t.Context(), edge, fmt.Sprint("asked", i), 5, writes([]byte("value")))
			answers <- err
		}()
	}
	for len(end.process.calls) < lanes {
		runtime.Gosched()
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = end.Put(short, edge, "further", 5, writes([]byte("value")))
	if !errors.Is(err, connector.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "4 others are under way") {
		t.Errorf("a call while all threads are busy: %v", err)
	}
	resume()
	for range lanes {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	for i := range lanes {
		get(t, end, fmt.Sprint("asked", i), []byte("value"))
	}
	wantNone(t, end, "further")
}

// TestServerDies: the error names the store, its address and the remedy; when the store is back,
// the same transport works.
func TestServerDies(t *testing.T) {
	eachServer(t, func(t *testing.T, engine string) {
		s := startServer(t, engine)
		t.Cleanup(s.close)
		address := fmt.Sprintf("127.0.0.1:%v", s.extra["port"])
		if engine == mooncake {
			address = fmt.Sprint(s.extra["master"])
		}
		end := s.open(t, engine, map[string]any{"timeout": 2})
		put(t, end, "lost", []byte("value"))
		s.do(t, "stop")
		_, err := end.Put(t.Context(), edge, "stopped", 5, writes([]byte("value")))
		if !errors.Is(err, connector.ErrUnavailable) {
			t.Errorf("put into a store that is stopped: %v", err)
		}
		s.do(t, "resume")
		s.do(t, "kill")
		_, err = end.Get(t.Context(), edge, "lost", nil)
		if !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), engine) && !strings.Contains(err.Error(), address) {
			t.Errorf("get from a store that is dead: %v", err)
		}
		_, err = openEngine(t.Context(), engine, s.extra)
		if !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), address+" cannot be reached") || !strings.Contains(err.Error(), "start it") {
			t.Errorf("opened without a store: %v", err)
		}
		s.do(t, "start")
		for {
			_, err = end.Put(t.Context(), edge, "again", 5, writes([]byte("value")))
			if err == nil {
				break
			}
			if !errors.Is(err, connector.ErrUnavailable) && !errors.Is(err, connector.ErrFull) {
				t.Fatal(err)
			}
		}
		get(t, end, "again", []byte("value"))
		wantNone(t, end, "lost")
		wantNone(t, end, "stopped")
	})
}

// TestCannotOpen: opening a transport reports every fault that can be known at that time.
func TestCannotOpen(t *testing.T) {
	eachServer(t, func(t *testing.T, engine string) {
		s := shared(t, engine)
		listener, err := net.Listen("tcp", "127.0.0.1:0") // another program at the port
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatal(listener.Addr())
		}
		for what, c := range map[string]struct {
			more map[string]any
			want string
		}{
			"no interpreter":  {map[string]any{"python": "/nowhere/python3"}, "set the option python"},
			"no client":       {map[string]any{"python": bare(t)}, "omnibus[" + engine + "]"},
			"another program": {map[string]any{"timeout": 0.5, "master": address.String(), "port": address.Port}, address.String()},
		} {
			_, err := openEngine(t.Context(), engine, s.with(c.more))
			if !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if len(processes.all) != 0 {
			t.Errorf("%d bridges are left", len(processes.all))
		}
	})
}

// bare returns an interpreter that finds no package but omnibus.
func bare(t *testing.T) string {
	t.Helper()
	python := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\nexec python3 -S \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return python
}

// TestTooLarge: a failed put leaves no value, and the next put works.
func TestTooLarge(t *testing.T) {
	eachServer(t, func(t *testing.T, engine string) {
		end := shared(t, engine).open(t, engine, map[string]any{"timeout": 4})
		size := 140 << 20
		if engine == mooncake {
			size = 33 << 20
		}
		_, err := end.Put(t.Context(), edge, "large", size, func([]byte) error { return nil })
		wants := []error{connector.ErrTooLarge}
		if engine == yuanrong { // its client retries until timeout, and may report only the timeout
			wants = []error{connector.ErrFull, connector.ErrUnavailable}
		}
		if !slices.ContainsFunc(wants, func(want error) bool { return errors.Is(err, want) }) {
			t.Errorf("a value of %d bytes: %v", size, err)
		}
		wantNone(t, end, "large")
		put(t, end, "small", []byte("value"))
		get(t, end, "small", []byte("value"))
	})
}

// TestOtherMetadata: metadata of another version are refused, and the value stays.
func TestOtherMetadata(t *testing.T) {
	each(t, func(t *testing.T, engine string) {
		end := shared(t, engine).open(t, engine, nil)
		put(t, end, "version", []byte("value"))
		for size, want := range map[any]error{"5": connector.ErrMetadata, -1: connector.ErrMetadata, 7: connector.ErrCorrupt, 1 << 50: connector.ErrCorrupt} {
			if _, err := end.Get(t.Context(), edge, "version", connector.Metadata{"size": size}); !errors.Is(err, want) {
				t.Errorf("a size of %v: %v, want %v", size, err, want)
			}
		}
		get(t, end, "version", []byte("value"))
	})
}

// TestAwaitOfGotValueEnds: Await ends if the metadata name a value that was got already.
func TestAwaitOfGotValueEnds(t *testing.T) {
	end := shared(t, folder).open(t, folder, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := end.Await(ctx, edge, "gone", nil); !errors.Is(err, connector.ErrNotFound) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await: %v", err)
	}
}

// TestGotValuesAreForgotten: a transport does not keep the names of values that others have got.
func TestGotValuesAreForgotten(t *testing.T) {
	s := shared(t, folder)
	end, other := s.open(t, folder, nil), s.open(t, folder, nil)
	for i := range 2 * firstPrune {
		key := fmt.Sprint("k", i)
		put(t, end, key, []byte("value"))
		get(t, other, key, []byte("value"))
	}
	if n := len(end.names()); n > firstPrune {
		t.Errorf("%d names are kept, and all values were got", n)
	}
}

// TestBufferReuse: memory does not grow with the number of values.
func TestBufferReuse(t *testing.T) {
	end := shared(t, folder).open(t, folder, map[string]any{"timeout": 22})
	value := make([]byte, 1<<20)
	for range 20 {
		put(t, end, "again", value)
		get(t, end, "again", value)
	}
	l, err := end.process.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := l.buffers.Load(); n > 3 { // a get without metadata starts with a small buffer
		t.Errorf("%d buffers for one value at a time", n)
	}
}

// TestOneBridge: transports with the same settings share a bridge until the last one is closed.
func TestOneBridge(t *testing.T) {
	s := shared(t, folder)
	first, second := s.open(t, folder, nil), s.open(t, folder, nil)
	if first.process != second.process {
		t.Error("two bridges")
	}
	process := bridge(t, first)
	var wait sync.WaitGroup
	for _, end := range []*transport{first, second} {
		wait.Go(func() {
			if err := end.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if err := process.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the bridge after the last close: %v", err)
	}
}

var discard = slog.New(slog.DiscardHandler)

var realPayloads = flag.Int("bridge.payloads", 1000, "how many values TestReal hands over each way")

// TestReal has vLLM-Omni's own class at the other side: this side gets its values and puts them
// again, and the class gets equal bytes. clients/python/tests/realstore.py lists the corrections
// that the class needs.
func TestReal(t *testing.T) {
	if os.Getenv("OMNIBUS_VLLM_OMNI") == "" {
		t.Skip("OMNIBUS_VLLM_OMNI does not say where vLLM-Omni is")
	}
	pythontest.Interpreter(t, "msgspec", "numpy")
	test := func(t *testing.T, engine string) {
		s := shared(t, engine)
		end := s.open(t, engine, nil)
		payloads, theirExtra := *realPayloads, s.extra
		switch engine {
		case nixl: // the class opens a connection for each value, and waits 10 ms for an answer
			payloads, theirExtra = payloads/10, map[string]any{"host": "127.0.0.1", "metadata_query_timeout_ms": 20_000, "transfer_timeout_s": 30}
		case transfer:
			payloads, theirExtra = payloads/4, map[string]any{"host": "127.0.0.1", "zmq_port": freePort(t), "protocol": "tcp", "memory_pool_size": 16 << 20}
		}
		extra, err := json.Marshal(theirExtra)
		if err != nil {
			t.Fatal(err)
		}
		cmd := pythontest.Command(t, filepath.Join("..", "..", "clients", "python", "tests", "realstore.py"), engine, string(extra))
		cmd.Stderr = nil
		vllm := pythontest.Start(t, cmd)
		edge := connector.Edge{From: "0", To: "1"}
		for i := range payloads {
			theirs, ours := fmt.Sprint("theirs", i), fmt.Sprint("ours", i)
			var put, got []any
			vllm.Tell([]any{"put", theirs, i})
			if err := vllm.Answer(&put); err != nil || put[0] != true {
				t.Fatalf("vLLM-Omni's put: %v, %v", put, err)
			}
			meta := connector.Metadata{"size": put[1]}
			if told, ok := put[2].(map[string]any); ok && isPeer(engine) {
				meta = told
			}
			value, err := end.Get(t.Context(), edge, theirs, meta)
			if err != nil {
				t.Fatal(err)
			}
			told, err := end.Put(t.Context(), edge, ours, len(value.Bytes()), writes(value.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			vllm.Tell([]any{"get", ours, told})
			if err := vllm.Answer(&got); err != nil || len(got) != 2 {
				t.Fatalf("vLLM-Omni's get: %v, %v", got, err)
			}
			if got[0] != base64.StdEncoding.EncodeToString(value.Bytes()) {
				t.Fatalf("value %d is another behind vLLM-Omni's get", i)
			}
			value.Release()
			if err := end.Cleanup(t.Context(), ours); err != nil {
				t.Fatal(err)
			}
		}
	}
	eachServer(t, test)
	eachPeer(t, test)
}
