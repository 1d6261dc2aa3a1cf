package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// ipcSizes are the payloads that are measured, in bytes.
var ipcSizes = []int{64, 4 * kib, mib, 64 * mib}

// A pattern is how payloads follow each other: some that go to the peer, and
// one answer when it has read them.
type pattern struct {
	Size   int // of a payload, in bytes
	Every  int // payloads to an answer
	Answer int // its size in bytes
	Runs   int // how often that is repeated in a slice
}

// perSlice is how many payloads make a slice. Through a socket it takes some
// milliseconds, or as long as one large payload does.
func perSlice(size int) int { return max(min(16*mib/size, 250), 1) }

func roundTrip(size int) pattern {
	return pattern{Size: size, Every: 1, Answer: size, Runs: perSlice(size)}
}

// acknowledgement is the size of an answer that only says that all was read.
const acknowledgement = 8

func oneWay(size int) pattern {
	return pattern{Size: size, Every: max(perSlice(size), 2), Answer: acknowledgement, Runs: 1}
}

// cacheLine is a size in bytes, and also what an object takes in a store besides its own.
const cacheLine = 64

// arenaPayloads bounds how many payloads a store has room for, in patterns that
// have many in flight.
const arenaPayloads = 16

// arenaBytes is the size of a store for payloads of a size that follow each
// other by the pattern: for one more than are in flight.
func (p pattern) arenaBytes(size int) int64 {
	payloads := min(p.Every, arenaPayloads) + 1
	return max(int64(payloads)*int64(size+2*cacheLine), mib)
}

// busBytes is the size of a bus's store for the pattern. Its two edges share
// three quarters of that, and each must have room for a payload at least.
func (p pattern) busBytes() int64 {
	const least, usual = 4, 16 // payloads
	size := int64(p.Size + 2*cacheLine)
	return max(least*size, min(usual*size, 64*mib), 4*mib)
}

// A side carries payloads to another process, by one means.
type side interface {
	// run repeats the pattern n times and says how long that took.
	run(ctx context.Context, n int) (time.Duration, error)
	close(ctx context.Context) error
}

// A contender is a side that is compared with another one.
type contender struct {
	name    string
	against string // the name of the other; empty: it is there for others alone
	target  target
	spec    peerSpec
}

// A peerSpec says what a peer does, and by what means.
type peerSpec struct {
	Carrier   carrierName
	Waiting   string    `json:",omitempty"` // of lanes: a name of waitings
	Socket    string    `json:",omitempty"` // the path of the socket to call at
	GPU       *gpuSpec  `json:",omitempty"` // says more of the carrier of that name
	Flight    int       `json:",omitempty"` // requests at a time, of a message each; 0: all messages are one stream
	Fan       int       `json:",omitempty"` // processes side by side, which each get every payload
	Chain     int       `json:",omitempty"` // processes in a row
	HostCalls bool      `json:",omitempty"` // of a bus: the process that hosts it calls
	Relayed   bool      `json:",omitempty"` // a process between the two passes on
	Gauge     gaugeName `json:",omitempty"` // figure of an idle side; empty: the time of a message
	Whole     bool      `json:",omitempty"` // every byte of a payload is read, and not one of each cache line
	Which     int       `json:",omitempty"` // of the processes of a side
	Target    string    `json:",omitempty"` // the address of another process
	Pattern   pattern   // Runs does not matter: the peer goes on until it is told to end
}

// storeBytes is the size of the largest store that the carrier needs.
func (s peerSpec) storeBytes() int64 {
	switch s.Carrier {
	case byHandle, byOffer, byPages, byFloor:
		return s.Pattern.arenaBytes(s.Pattern.Size)
	case byNode, byDirect, byPython, byForward:
		return s.Pattern.busBytes()
	default:
		return 0
	}
}

// A race has its contenders run one after the other, a slice each, in the order of
// [turns].
type race struct {
	pattern     pattern
	contenders  []contender
	comparisons []comparison
	sides       []side
	rounds      int // so far
}

// A comparison is a figure: the time of one contender beside that of another.
type comparison struct {
	name    string
	ours    string
	against string // empty: beside none
	target  target
	speed   bool // it is compared by its speed, and not by its cost
}

// raceScenario is the scenario of a race. Its figures are the times of a
// payload: until its answer, or, one way, until all were read.
func raceScenario(name string, p pattern, contenders ...contender) scenario {
	var all []comparison
	for _, c := range contenders {
		if c.against != "" {
			all = append(all, comparison{name: c.name, ours: c.name, against: c.against, target: c.target, speed: c.target.of != ofRatio})
		}
	}
	return raceOf(name, p, contenders, all)
}

// raceOf is raceScenario with other figures.
func raceOf(name string, p pattern, contenders []contender, all []comparison) scenario {
	s := scenario{name: name}
	for _, c := range contenders {
		s.needs = max(s.needs, c.spec.storeBytes())
	}
	for _, c := range all {
		s.metrics = append(s.metrics, metric{name: c.name, unit: "µs", target: c.target, speed: c.speed, best: true})
	}
	s.open = func(ctx context.Context, opts Options) (trial, error) {
		r := &race{pattern: p, contenders: contenders, comparisons: all}
		for _, c := range contenders {
			opened, err := openSide(ctx, opts, c.spec)
			if err != nil {
				_ = r.close(context.WithoutCancel(ctx))
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			r.sides = append(r.sides, opened)
		}
		return r, nil
	}
	return s
}

// turns is the order in which n contenders run in a round. In twice as many rounds each of
// them has followed every other equally often: in which state processors and threads
// are left by the one before is worth a tenth to a side that sleeps.
func turns(n, round int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i / 2 // 0, n-1, 1, n-2, ...: a row of a Williams square, and the others are this one shifted
		if i%2 == 1 {
			order[i] = n - 1 - i/2
		}
		order[i] = (order[i] + round/2) % n
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

func (r *race) round(ctx context.Context, _ bool) ([]sample, error) {
	micros := make(map[string]float64, len(r.sides))
	order := turns(len(r.sides), r.rounds)
	r.rounds++
	for _, i := range order {
		took, err := r.slice(ctx, r.sides[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.contenders[i].name, err)
		}
		micros[r.contenders[i].name] = microsPer(took, r.pattern.Runs*r.pattern.Every)
	}
	var samples []sample
	for _, c := range r.comparisons {
		samples = append(samples, sample{micros[c.ours], micros[c.against]}) // zero, if beside none
	}
	return samples, nil
}

// warmUpPart is the part of a slice that precedes it and does not count: after
// the pause both processes have to come back.
const warmUpPart = 8

func (r *race) slice(ctx context.Context, s side) (time.Duration, error) {
	runtime.GC()
	if n := r.pattern.Runs / warmUpPart; n > 0 {
		if _, err := s.run(ctx, n); err != nil {
			return 0, err
		}
	}
	return s.run(ctx, r.pattern.Runs)
}

func (r *race) close(ctx context.Context) error {
	var first error
	for _, s := range r.sides {
		if err := s.close(ctx); err != nil && first == nil {
			first = err
		}
	}
	r.sides = nil
	return first
}
