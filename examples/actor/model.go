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
	waiting []*bus.Delivery // each keeps its payload, and its place in the edge's window
}

// Receive implements actor.Actor. The bus sends *bus.Delivery, and *bus.Ended
// when a request is over whose words still wait: until they are finished they
// keep their memory, and the bus cannot close. Messages of protoactor's own,
// such as *actor.Started, come as well.
func (m *model) Receive(c actor.Context) {
	switch msg := c.Message().(type) {
	case *bus.Delivery:
		m.take(msg)
	case *bus.Ended:
		m.flush(msg.Task)
	}
}

func (m *model) take(d *bus.Delivery) {
	task, last, bare := d.Task(), d.EOS, d.Bare() // d is not to be touched once it is finished
	if !bare {
		m.waiting = append(m.waiting, d)
	}
	switch {
	case len(m.waiting) == batchSize:
		answer(m.waiting)
		m.waiting = nil
	case last:
		m.flush(task) // older words, of other requests, go on waiting
	}
	if bare { // no word, only the end of the stream
		_ = d.Finish(nil)
	}
}

// flush answers what waits of one request.
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
// word. An error given to Finish fails that request and no other; one that is
// over takes no answers, but what it held is given back.
func answer(batch []*bus.Delivery) {
	for _, d := range batch {
		word, err := bus.Result[string](d)
		if err == nil {
			err = d.Task().Emit(fmt.Sprintf("%s: %d letters (batch of %d)", word, len(word), len(batch)))
		}
		_ = d.Finish(err) // it fails only for what was finished before
	}
}
