package bus

import "testing"

// TestSlotAboveBoundIsKeptApart: after the return of a slot that was made to break a cycle, requests spread over the
// replicas as before.
func TestSlotAboveBoundIsKeptApart(t *testing.T) {
	b, err := Open(t.Context(), Pipeline{Stages: []StageSpec{{
		Name: "a", Replicas: 2, MaxInflight: 1, Handle: func(*Task, *Delivery) error { return nil },
	}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	tasks := make([]*Task, 5)
	for i := range tasks {
		r, err := b.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tasks[i] = &r.tasks[0]
	}
	open := func(task *Task) {
		var g granted
		b.admission.mu.Lock()
		b.admission.grant(task, &g)
		b.admission.mu.Unlock()
		g.beginStays()
		Await(t, func() bool { return task.slot.Load() != nil })
	}
	leave := func(task *Task) { task.outputs.req.releaseSlot(task) }
	for _, task := range tasks[:3] { // the third one above the bound
		open(task)
	}
	for _, task := range tasks[:3] {
		leave(task)
	}
	open(tasks[3])
	open(tasks[4])
	if one, other := tasks[3].Replica(), tasks[4].Replica(); one == other {
		t.Errorf("two requests are at replica %d, and none is at the other", one)
	}
	leave(tasks[3])
	leave(tasks[4])
	for _, task := range tasks {
		task.outputs.req.Close()
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
