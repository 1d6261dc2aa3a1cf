package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// patience bounds every wait of a test.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// onEachMemory runs a test on a bus in shared memory, where that is available, and
// on a bus on the heap. Every word is too long to travel inside its delivery.
func onEachMemory(t *testing.T, p bus.Pipeline, f func(*testing.T, *bus.Bus)) {
	for _, memory := range []shmstore.Memory{shmstore.Auto, shmstore.Heap} {
		t.Run(memory.String(), func(t *testing.T) {
			opts := bus.Options{InlineBytes: -1, Store: shmstore.Options{Memory: memory, ArenaBytes: 4 << 20}}
			b, err := bus.Open(t.Context(), p, opts)
			if err != nil {
				t.Fatal(err)
			}
			f(t, b)
			if err := b.Close(patience(t)); err != nil { // names unfinished deliveries
				t.Error(err)
			}
		})
	}
}

func stream(t *testing.T, b *bus.Bus, text string) *bus.Request {
	t.Helper()
	r, err := b.Stream(t.Context())
	if err == nil {
		err = r.Send(t.Context(), text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// receive gives the next n results.
func receive(t *testing.T, r *bus.Request, n int) []string {
	t.Helper()
	var got []string
	for range n {
		d, err := r.Recv(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		text, err := bus.Result[string](d)
		if err = errors.Join(err, d.Finish(nil)); err != nil {
			t.Fatal(err)
		}
		got = append(got, text)
	}
	return got
}

// A batch is made of the words of several requests, none of which has ended.
func TestBatchAcrossRequests(t *testing.T) {
	onEachMemory(t, pipeline(newModel), func(t *testing.T, b *bus.Bus) {
		first, second := stream(t, b, "a bb"), stream(t, b, "ccc")
		got := append(receive(t, first, 2), receive(t, second, 1)...)
		want := []string{
			"a: 1 letters (batch of 3)",
			"bb: 2 letters (batch of 3)",
			"ccc: 3 letters (batch of 3)",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// Many requests at once each get their own answers, in order.
func TestManyRequests(t *testing.T) {
	onEachMemory(t, pipeline(newModel), func(t *testing.T, b *bus.Bus) {
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				var words []string
				for k := range i % 8 {
					words = append(words, fmt.Sprintf("%d-%d", i, k))
				}
				r, err := b.Submit(t.Context(), strings.Join(words, " "))
				if err != nil {
					t.Error(err)
					return
				}
				var got []string
				for d, err := range r.Results(patience(t)) {
					if err != nil {
						t.Error(err)
						return
					}
					text, err := bus.Result[string](d)
					if err != nil {
						t.Error(err)
					}
					word, _, _ := strings.Cut(text, ":")
					got = append(got, word)
				}
				if diff := cmp.Diff(words, got); diff != "" {
					t.Errorf("request %d:\n%s", i, diff)
				}
			})
		}
		wg.Wait()
	})
}

// witness is a model that reports each delivery that it has received.
type witness struct {
	model
	took chan struct{}
}

func (w *witness) Receive(c actor.Context) {
	w.model.Receive(c)
	if _, ok := c.Message().(*bus.Delivery); ok {
		w.took <- struct{}{}
	}
}

// Words that wait do not outlive their request.
func TestAbortedRequest(t *testing.T) {
	took := make(chan struct{}, 100)
	p := pipeline(func() actor.Actor { return &witness{took: took} })
	onEachMemory(t, p, func(t *testing.T, b *bus.Bus) {
		aborted := stream(t, b, "a bb")
		<-took
		<-took
		aborted.Abort(nil)
		if err := b.Drain(patience(t)); err != nil {
			t.Fatal(err)
		}
		// If the two were still waiting, these would complete a batch.
		other := stream(t, b, "ccc")
		<-took
		if err := other.CloseSend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ccc: 3 letters (batch of 1)"}, receive(t, other, 1)); diff != "" {
			t.Error(diff)
		}
	})
}

// The bus closes while words wait.
func TestCloseWithWordsWaiting(t *testing.T) {
	took := make(chan struct{}, 100)
	p := pipeline(func() actor.Actor { return &witness{took: took} })
	onEachMemory(t, p, func(t *testing.T, b *bus.Bus) {
		stream(t, b, "a bb")
		<-took
		<-took
	})
}

// An invalid word fails its request, and no other request of its batch.
func TestBadWord(t *testing.T) {
	p := pipeline(newModel)
	p.Stages[0] = bus.StageSpec{Name: "words", Handle: func(task *bus.Task, d *bus.Delivery) error {
		text, err := bus.Result[string](d)
		if err == nil && text == "bad" {
			return task.Emit(42)
		}
		return errors.Join(err, words(task, text, func(word string) error { return task.Emit(word) }))
	}}
	onEachMemory(t, p, func(t *testing.T, b *bus.Bus) {
		good, bad := stream(t, b, "a bb"), stream(t, b, "bad")
		if diff := cmp.Diff([]string{"a: 1 letters (batch of 3)", "bb: 2 letters (batch of 3)"}, receive(t, good, 2)); diff != "" {
			t.Error(diff)
		}
		_, err := bad.Recv(patience(t))
		var at *bus.StageError
		if !errors.As(err, &at) || at.Stage != "model" || at.Edge != "words->model" {
			t.Errorf("the bad word: %v", err)
		}
	})
}
