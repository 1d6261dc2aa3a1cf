package bus_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
)

// This file has the plan that the soak test makes for a request: its payloads,
// the faults on its way, and its ending.

// ending is the planned end of a request.
type ending int

const (
	endsWell     ending = iota // completes, and every result is received
	walksAway                  // the caller stops receiving and closes it
	abortedEnd                 // Request.Abort
	canceledEnd                // the request's context is canceled
	pastDeadline               // it is held until its deadline has passed
	panicsEnd                  // a handler panics more often than it may
	errorEnd                   // a handler returns an error
	overrunEnd                 // an edge whose policy is Fail finds its window full
	endings
)

func (e ending) String() string {
	return [...]string{"completes", "walks away", "aborted", "canceled", "past deadline", "panics", "error", "overrun"}[e]
}

// endingShares are the shares of the endings, in percent.
var endingShares = [endings]int{endsWell: 51, walksAway: 5, abortedEnd: 9, canceledEnd: 6, pastDeadline: 13, panicsEnd: 9, errorEnd: 3, overrunEnd: 4}

// outcomes are the allowed outcomes of a planned end.
func (e ending) outcomes() []bus.Outcome {
	switch e {
	case endsWell:
		return []bus.Outcome{bus.Completed}
	case walksAway:
		return []bus.Outcome{bus.Completed, bus.Aborted}
	case abortedEnd, canceledEnd:
		return []bus.Outcome{bus.Aborted}
	case pastDeadline:
		return []bus.Outcome{bus.PastDeadline}
	default:
		return []bus.Outcome{bus.Failed}
	}
}

// The stages of the soak test's pipeline, see soak.pipeline.
const (
	stageSplit = "split"
	stageLeft  = "left"
	stageRight = "right"
	stageMeter = "meter"
	stageJoin  = "join"
	stageBatch = "batch"
	stageHold  = "hold"
)

// Bounds of a request. They fit the windows of soak.pipeline.
const (
	soakMaxInputs  = 3
	soakMaxChunks  = 12       // the window of split->left has credit for so many
	soakMaxPayload = 64 << 10 // of one chunk or input
	soakMaxRequest = 72 << 10 // of all chunks together: right keeps them for a replay

	soakResultWindow = 2
)

// spot is a stage, and the chunk at which a planned event happens there.
type spot struct {
	stage string
	chunk int
}

// soakRequest is the record of one request: the plan, and the observations.
// Stages find it through the request's context.
type soakRequest struct {
	index  uint64
	end    ending
	at     spot  // where the ending happens, if a stage causes it
	inputs []int // number of chunks of each input
	sizes  []int // bytes of each chunk, header included
	slow   bool  // meter is held back, so that its edge has to drop
	marked bool  // split marks its last chunk as Last
	try    bool  // TrySubmit comes before Submit
	byCtx  bool  // the context has the deadline
	self   bool  // the stage ends it at that spot, instead of the caller
	unread bool  // the caller receives no result, so that the window of results fills

	patience time.Duration // of a request that runs past its deadline
	strike   func()        // ends the request, for endings that no handler causes
	joined   chan struct{} // closed when join has handled all chunks

	mu      sync.Mutex
	panics  map[spot]int // how many follow
	metered uint64       // chunks that meter got, or whose drop was reported to it
}

type soakKey struct{}

func entryOf(t *bus.Task) *soakRequest { return t.Context().Value(soakKey{}).(*soakRequest) }

// planRequest draws the plan of one request. The same seed and index give the
// same plan.
func planRequest(seed, index uint64) *soakRequest {
	rng := rand.New(rand.NewPCG(seed, index))
	e := &soakRequest{
		index: index, end: drawEnding(rng), panics: map[spot]int{}, joined: make(chan struct{}), strike: func() {},
		patience: 200*time.Microsecond + time.Duration(rng.Int64N(int64(2*time.Millisecond))),
		slow:     rng.IntN(8) == 0, marked: rng.IntN(2) == 0, byCtx: rng.IntN(3) == 0, self: rng.IntN(2) == 0,
	}
	e.inputs = make([]int, 1+max(0, rng.IntN(2*soakMaxInputs)-soakMaxInputs))
	chunks := len(e.inputs) + rng.IntN(soakMaxChunks/2)
	if e.end == overrunEnd {
		chunks = soakMaxChunks + 1 + rng.IntN(4)
	}
	for i := range chunks {
		e.inputs[i%len(e.inputs)]++
	}
	e.drawSizes(rng, chunks)
	e.try = rng.IntN(2) == 0
	e.drawMishaps(rng, chunks)
	return e
}

func drawEnding(rng *rand.Rand) ending {
	n := rng.IntN(100)
	for e := range endings {
		if n -= endingShares[e]; n < 0 {
			return e
		}
	}
	return endsWell
}

// drawSizes mixes payloads that travel inline with many of some KiB and a few
// that are large.
func (e *soakRequest) drawSizes(rng *rand.Rand, chunks int) {
	left := soakMaxRequest
	for i := range chunks {
		size := 600 + rng.IntN(3<<10)
		switch n := rng.IntN(100); {
		case n < 10:
			size = soakHeader + rng.IntN(400)
		case n < 15:
			size = soakMaxPayload - rng.IntN(48<<10)
		case n < 35:
			size = 4<<10 + rng.IntN(12<<10)
		}
		size = min(size, left-(chunks-i)*1024)
		left -= size
		e.sizes = append(e.sizes, max(size, soakHeader))
	}
}

// drawMishaps draws the spot of the ending, and panics before it.
func (e *soakRequest) drawMishaps(rng *rand.Rand, chunks int) {
	stages := []string{stageLeft, stageRight, stageBatch} // stages that may panic
	for _, stage := range stages {
		if rng.IntN(12) == 0 {
			e.panics[spot{stage, rng.IntN(chunks)}] = 1
		}
	}
	switch e.end {
	case abortedEnd, canceledEnd, errorEnd:
		stages = []string{stageSplit, stageLeft, stageRight, stageJoin, stageBatch, stageHold}
	case pastDeadline:
		stages = []string{stageHold, stageMeter}
		e.unread = chunks > 2*soakResultWindow && rng.IntN(3) == 0
	default: // at a stage that may panic
	}
	e.at = spot{stages[rng.IntN(len(stages))], rng.IntN(chunks)}
	if e.at.stage == stageMeter {
		e.at.chunk = chunks - 1 // the only chunk that the edge's policy never drops
	}
	if e.end == panicsEnd {
		e.panics[e.at] = math.MaxInt
	}
}

// reach is called by a stage at a chunk. It panics, ends the request or fails
// there if the plan says so.
func (e *soakRequest) reach(stage string, chunk uint32) error {
	at := spot{stage, int(chunk)}
	e.mu.Lock()
	panics := e.panics[at] > 0
	if panics {
		e.panics[at]--
	}
	e.mu.Unlock()
	switch {
	case panics:
		panic(errSoakPanic)
	case at != e.at:
	case e.end == abortedEnd || e.end == canceledEnd:
		e.strike()
	case e.end == errorEnd:
		return errSoakHandler
	}
	return nil
}

var (
	errSoakPanic   = errors.New("planned panic")
	errSoakHandler = errors.New("planned error")
	errSoakStrike  = errors.New("planned end")
	errSoakLate    = errors.New("comes too late")
	errSoakBroken  = errors.New("payload is broken")
)

// strikeBy arranges that end runs when the request reaches its spot: in the
// stage, or on another goroutine. done is closed when the request is over.
func (e *soakRequest) strikeBy(end func(), done <-chan struct{}) {
	if e.self {
		e.strike = end
		return
	}
	reached := make(chan struct{}, 1)
	e.strike = func() {
		select {
		case reached <- struct{}{}:
		default: // a retry reaches the spot again
		}
	}
	go func() {
		select {
		case <-reached:
			end()
		case <-done:
		}
	}()
}

// inputSize is the size of each input in bytes.
func (e *soakRequest) inputSize() int { return soakHeader + e.sizes[0]/2 }

// wantError compares the two errors of a request that did not complete, its
// own and that of its results, with the plan.
func (e *soakRequest) wantError(errs ...error) error {
	causes := map[ending][]error{
		abortedEnd:   {bus.ErrAborted, errSoakStrike},
		canceledEnd:  {bus.ErrAborted, errSoakStrike},
		pastDeadline: {bus.ErrDeadline},
		panicsEnd:    {bus.ErrPanic, errSoakPanic},
		errorEnd:     {errSoakHandler},
		overrunEnd:   {bus.ErrWindowFull},
	}
	for _, err := range errs {
		for _, cause := range causes[e.end] {
			if !errors.Is(err, cause) {
				return fmt.Errorf("it ended with %w, and not with %w", err, cause)
			}
		}
	}
	return nil
}

// holds reports whether a stage has to keep the delivery of a chunk until the
// request is over, so that the request has its planned end.
func (e *soakRequest) holds(stage string, chunk uint32) bool {
	switch e.end {
	case overrunEnd:
		return stage == stageLeft
	case pastDeadline:
		return !e.unread && spot{stage, int(chunk)} == e.at
	case abortedEnd, canceledEnd:
		return stage == stageHold
	default:
		return false
	}
}

// A payload begins with a header: the request, the chunk, the stage that sent it,
// the length, and a checksum of all other bytes. The word after that is for the
// stages, which pass a value to the next one.
const (
	soakHeader = 32
	crcAt      = 20
	wordAt     = 24
)

var (
	crcTable = crc32.MakeTable(crc32.Castagnoli)
	// noise is the content of payloads.
	noise = func() []byte {
		b := make([]byte, 2*soakMaxPayload)
		rng := rand.NewChaCha8([32]byte{1})
		_, _ = rng.Read(b) // never fails
		return b
	}()
)

func soakSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:crcAt], crcTable), crcTable, b[wordAt:])
}

// seal fills b with the payload of a chunk.
func (e *soakRequest) seal(b []byte, chunk, word uint32, from string) {
	copy(b[soakHeader:], noise[(e.index*7+uint64(chunk)*13)%soakMaxPayload:])
	le := binary.LittleEndian
	le.PutUint64(b, e.index)
	le.PutUint32(b[8:], chunk)
	copy(b[12:16], from)
	le.PutUint32(b[16:], uint32(len(b)))
	le.PutUint64(b[wordAt:], uint64(word))
	le.PutUint32(b[crcAt:], soakSum(b))
}

// unseal checks a payload from end to end and returns its chunk and word.
func (e *soakRequest) unseal(b []byte, from string) (chunk, word uint32, err error) {
	le := binary.LittleEndian
	if len(b) < soakHeader {
		return 0, 0, fmt.Errorf("%w: %d bytes", errSoakBroken, len(b))
	}
	index, chunk, word := le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[wordAt:])
	switch {
	case soakSum(b) != le.Uint32(b[crcAt:]) || int(le.Uint32(b[16:])) != len(b):
		return 0, 0, fmt.Errorf("%w: the checksum of %d bytes does not match", errSoakBroken, len(b))
	case index != e.index:
		return 0, 0, fmt.Errorf("%w: it belongs to request %d, want %d", errSoakBroken, index, e.index)
	case string(b[12:16]) != from[:4]:
		return 0, 0, fmt.Errorf("%w: it comes from %q, want %q", errSoakBroken, b[12:16], from)
	}
	return chunk, word, nil
}
