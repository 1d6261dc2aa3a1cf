package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/codec/python"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/shm"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// wordBytes is the size of an element of the array that is handed over. What is
// read is added up, so that nothing can be left out.
const wordBytes = 8

// benchEdge is the edge along which values go.
var benchEdge = connector.Edge{From: "0", To: "1"}

// A benchValue is what is handed over: an array as a stage would send it.
type benchValue struct {
	Request string         `msgpack:"request_id"`
	Hidden  python.NDArray `msgpack:"hidden"`
}

// newBenchValue makes a value of which the words are 0, 1, 2 and so on, and says
// what they add up to.
func newBenchValue(sizeBytes int) (v benchValue, sum uint64) {
	words := sizeBytes / wordBytes
	data := make([]byte, 0, sizeBytes)
	for i := range uint64(words) {
		data = binary.LittleEndian.AppendUint64(data, i)
		sum += i
	}
	return benchValue{"bench", python.NDArray{DType: "<u8", Shape: []int{words}, Data: data}}, sum
}

// addWords adds up what was got, four words at a time.
func addWords(b []byte) uint64 {
	var s0, s1, s2, s3 uint64
	for ; len(b) >= 4*wordBytes; b = b[4*wordBytes:] {
		s0 += binary.LittleEndian.Uint64(b)
		s1 += binary.LittleEndian.Uint64(b[wordBytes:])
		s2 += binary.LittleEndian.Uint64(b[2*wordBytes:])
		s3 += binary.LittleEndian.Uint64(b[3*wordBytes:])
	}
	for ; len(b) >= wordBytes; b = b[wordBytes:] {
		s0 += binary.LittleEndian.Uint64(b)
	}
	return s0 + s1 + s2 + s3
}

// A connectorEnd is what one of the processes has.
type connectorEnd struct {
	hosted
	connector *connector.Connector
	node      *node.Node
	in        *bufio.Reader
	out       *os.File
}

// A note is what goes through the pipe beside a value, a line of JSON.
type note struct {
	Key  string             `json:"key"`
	Meta connector.Metadata `json:"meta"`
}

// serveConnector is one of the processes, until what it reads from ends.
func serveConnector(ctx context.Context, spec peerSpec, stdin io.Reader) error {
	e := &connectorEnd{}
	e.useFiles(os.NewFile(firstFile, "in"), os.NewFile(firstFile+1, "out"))
	err := e.open(ctx, spec)
	switch {
	case err != nil:
	case spec.Connector.Gets:
		err = e.getAll(ctx)
	default:
		err = e.putAll(ctx, spec.Pattern.Size, stdin)
	}
	return errors.Join(err, e.close(context.WithoutCancel(ctx)))
}

func (e *connectorEnd) useFiles(in io.Reader, out *os.File) {
	e.in, e.out = bufio.NewReader(in), out
}

func (e *connectorEnd) open(ctx context.Context, spec peerSpec) (err error) {
	switch spec.Connector.By {
	case byFile, byLocked:
		e.connector = connector.New("bare", &bareFiles{locked: spec.Connector.By == byLocked}, omni.Serializer{})
		return nil
	case byMemory:
		e.connector = connector.New("floor", &sharedMemory{}, omni.Serializer{})
		return nil
	default: // a type of connector
	}
	var types connector.Registry
	if err := types.Register(shm.Type()); err != nil {
		return err
	}
	opts := connector.Options{
		Extra:      map[string]any{"mode": string(spec.Connector.By), "shm_threshold_bytes": 0},
		Serializer: omni.Serializer{},
	}
	if spec.Connector.By == byRing {
		if opts.Exchange, err = e.attach(ctx, spec); err != nil {
			return err
		}
	}
	e.connector, err = types.Open(ctx, shm.Name, opts)
	return err
}

// attach finds the exchange: the own bus's, or that of the one that listens.
func (e *connectorEnd) attach(ctx context.Context, spec peerSpec) (_ connector.Exchange, err error) {
	if spec.Connector.Hosts && !spec.Connector.Gets {
		e.hosted, err = hostFor(ctx, spec, shmstore.Options{})
		return e.bus, err
	}
	e.node, err = node.Join(ctx, "bench", node.JoinOptions{Socket: spec.Socket})
	return e.node, err
}

// putAll puts as many values as each line of standard input says, and answers how
// many nanoseconds that took.
func (e *connectorEnd) putAll(ctx context.Context, sizeBytes int, stdin io.Reader) error {
	value, sum := newBenchValue(sizeBytes)
	fmt.Fprintln(os.Stdout, "ready")
	lines, made := bufio.NewScanner(stdin), 0
	for lines.Scan() {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		start := time.Now()
		for range n {
			made++
			if err := e.put(ctx, benchKey(os.Getpid(), made), value, sum); err != nil {
				return err
			}
		}
		fmt.Fprintln(os.Stdout, time.Since(start).Nanoseconds())
	}
	return lines.Err()
}

// put puts a value, and waits until the other process has read it.
func (e *connectorEnd) put(ctx context.Context, key string, value benchValue, sum uint64) error {
	_, meta, err := e.connector.Put(ctx, benchEdge, key, value)
	if err != nil {
		return err
	}
	line, err := json.Marshal(note{key, meta})
	if err != nil {
		return err
	}
	if _, err := e.out.Write(append(line, '\n')); err != nil {
		return err
	}
	answer, err := e.in.ReadString('\n')
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(answer); got != strconv.FormatUint(sum, 10) {
		return fmt.Errorf("a value arrived as something else: its words add up to %s and not to %d", got, sum)
	}
	return nil
}

// getAll gets each value that a note says is there, until there are no more notes.
func (e *connectorEnd) getAll(ctx context.Context) error {
	for {
		line, err := e.in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		var n note
		if err == nil {
			err = json.Unmarshal(line, &n)
		}
		if err != nil {
			return err
		}
		sum, err := e.get(ctx, n)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(e.out, sum); err != nil {
			return err
		}
	}
}

func (e *connectorEnd) get(ctx context.Context, n note) (sum uint64, err error) {
	got, err := e.connector.Get(ctx, benchEdge, n.Key, n.Meta)
	if err != nil {
		return 0, err
	}
	defer got.Release()
	var value benchValue
	if err := got.Decode(&value); err != nil {
		return 0, err
	}
	return addWords(value.Hidden.Data), nil
}

// close ends the process's part. Who hosts waits until the other one has left.
func (e *connectorEnd) close(ctx context.Context) error {
	var errs []error
	if e.connector != nil {
		errs = append(errs, e.connector.Close())
	}
	if e.node != nil {
		errs = append(errs, e.node.Close(ctx))
	}
	errs = append(errs, e.out.Close())
	if e.server != nil {
		_, _ = io.Copy(io.Discard, e.in)
	}
	return errors.Join(append(errs, e.hosted.close(ctx))...)
}
