package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

const (
	// ownSubmitters and nodeSubmitters are how many requests the test itself,
	// and each process that submits, has open at a time.
	ownSubmitters  = 3
	nodeSubmitters = 2

	// tagBits are the bits of a tag that count requests; the others are a process id.
	tagBits = 10
)

// tags numbers the requests of this process. The numbers are unique among all live
// processes.
type tags struct{ last atomic.Uint32 }

func (t *tags) next() uint32 { return uint32(os.Getpid())<<tagBits | t.last.Add(1)&(1<<tagBits-1) }

// submitForever is the process of a caller. It sends requests until its
// standard input ends, and prints the outcome of each.
func submitForever() error {
	rejoin := os.Getenv(rejoinEnv) != ""
	sc := currentScenario()
	opts := sc.join
	opts.Rejoin = rejoin
	n, err := node.Join(context.Background(), "submitter", opts)
	if err != nil {
		return err
	}
	var (
		told  = make(chan struct{})
		tags  tags
		group sync.WaitGroup
		gone  atomic.Bool
	)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it, or dies
		close(told)
	}()
	for range nodeSubmitters {
		group.Go(func() {
			for i := 1; !closed(told) && (rejoin || !gone.Load()); i++ {
				epoch := n.Epoch()
				err := sc.roundTrip(context.Background(), n, tags.next(), i)
				switch {
				case err == nil:
					fmt.Printf("done %d\n", epoch)
				case errors.Is(err, bus.ErrHostGone) && !errors.Is(err, errBroken), gaveUp(err):
					gone.Store(true)
					fmt.Printf("gone %d\n", epoch)
				case sc.mayFail && died(err):
					fmt.Printf("failed %q\n", err)
				default:
					fmt.Printf("broken %q\n", err)
				}
			}
		})
	}
	group.Wait()
	if gone.Load() && !rejoin {
		return bus.ErrHostGone
	}
	return n.Close(context.Background())
}

// gaveUp reports whether the host removed this process because it was stopped. The host may abort
// its requests, with that reason, before the connection ends.
func gaveUp(err error) bool {
	return errors.Is(err, bus.ErrAborted) && strings.Contains(err.Error(), fmt.Sprintf("process %d (submitter), which is stopped", os.Getpid()))
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
