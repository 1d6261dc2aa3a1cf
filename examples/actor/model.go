package main

import (
	"fmt"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
)

const batchSize = 3

// model is the actor: a model that answers words in batches. Its messages come
// one at a time, so it needs no lock.
type model struct {
	waiting []*bus.Delivery // each keeps its payload, and its slot of the edge's window
}

// Receive implements actor.Actor. The bus sends *bus.Delivery, and *bus.Ended
// for a request that is over while its words still wait: until the words are
// finished, they keep their memory and the bus cannot close. protoactor sends
// messages of its own as well, such as *actor.Started.
func (m *model) Receive(c actor.Context) {
	switch msg := c.Message().(type) {
	case *bus.Delivery:
		m.take(msg)
	case *bus.Ended:
		m.flush(msg.Task)
	}
}

func (m *model) take(d *bus.Delivery) {
	task, last, bare := d.Task(), d.EOS, d.Bare() // d must not be used after it is finished
	if !bare {
		m.waiting = append(m.waiting, d)
	}
	switch {
	case len(m.waiting) == batchSize:
		answer(m.waiting)
		m.waiting = nil
	case last:
		m.flush(task) // older words of other requests keep waiting
	}
	if bare { // no word, only the end of the stream
		_ = d.Finish(nil)
	}
}

// flush answers the waiting words of one request.
func (m *model) flush(task *bus.Task) {
	var its []*bus.Delivery
	m.waiting = slices.DeleteFunc(m.waiting, func(d *bus.Delivery) bool {
		found := d.Task() == task
		if found {
			its = append(its, d)
		}
		return found
	})
	answer(its)
}

// answer is one pass of the model. Each answer goes to the request of its
// word. An error given to Finish fails only that request. A request that is over
// takes no answers, but Finish still releases its payloads.
func answer(batch []*bus.Delivery) {
	for _, d := range batch {
		word, err := bus.Result[string](d)
		if err == nil {
			err = d.Task().Emit(fmt.Sprintf("%s: %d letters (batch of %d)", word, len(word), len(batch)))
		}
		_ = d.Finish(err) // it fails only for a delivery that was finished before
	}
}
