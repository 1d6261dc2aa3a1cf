package shelf

import "testing"

// TestReclaim: the owner sees what was read, and no one gets it again, whatever others do to
// the lock.
func TestReclaim(t *testing.T) {
	s := newShelf(t)
	one, other, table := taker(t, s), taker(t, s), taker(t, s)
	number := put(t, s, 1)
	if s.Reclaim(number) || one.Given(number) {
		t.Error("what lies there is over")
	}
	one.Give(number) // which it does not have
	if s.Reclaim(number) || !one.has(number, 1) {
		t.Fatal("it is not to be had")
	}
	if s.Reclaim(number) || table.Given(number) {
		t.Error("what is read is over")
	}
	one.Give(number)
	if one.Given(number) || !table.Given(number) {
		t.Error("who has given it back is not who sees it, or is")
	}
	for range 2 {
		if !s.Reclaim(number) {
			t.Error("what was read is not over")
		}
	}
	one.PutBack(number) // as nobody does
	if other.has(number, 1) || table.Claim(number) || table.Free(number) {
		t.Error("its room is used again, and it is to be had")
	}
	if !table.Share(number) {
		t.Error("the table cannot take it over")
	}
	s.Clear(number)
	table.PutBack(number)
	if !other.Free(number) {
		t.Error("it was cleared, and is locked")
	}

	number = put(t, s, 2)
	if !table.Claim(number) || s.Reclaim(number) {
		t.Error("what the table has is over")
	}
	one.Close()
	one.Give(number)
	if one.Given(number) {
		t.Error("a closed taker sees something")
	}
}

// TestReclaimOfTheCleared: what was cleared is no more to be reclaimed, and its lock is nobody's then.
func TestReclaimOfTheCleared(t *testing.T) {
	s := newShelf(t)
	one, other := taker(t, s), taker(t, s)
	number := put(t, s, 1)
	if !one.has(number, 1) {
		t.Fatal("it is not to be had")
	}
	one.Give(number)
	s.Clear(number)
	if s.Reclaim(number) {
		t.Error("it was cleared, and is reclaimed")
	}
	one.PutBack(number)
	if !other.Free(number) {
		t.Error("it was cleared, and stays locked")
	}
}

// TestClosedShelf: nothing comes of it when the owner goes on.
func TestClosedShelf(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	s.Begin(testFirst)
	number := put(t, s, 1)
	for range 2 {
		s.Close()
	}
	s.Publish(number)
	if s.Reclaim(number) {
		t.Error("its room can be used again")
	}
	s.Clear(number)
	if _, ok := s.Put(Value{}); ok || s.FD() != -1 {
		t.Errorf("put %v, descriptor %d", ok, s.FD())
	}
}
