package lane

import "math/rand/v2"

// sendChecked sends numbered frames.
func sendChecked(s *Sender, frames uint64, gone <-chan struct{}) error {
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, s.maxFrame)
	for number := range frames {
		if err := send(s, Kind(number%1000), checkedFrame(buf, number, rng), gone); err != nil {
			return err
		}
	}
	return nil
}

// receiveChecked receives them, and frees several at a time.
func receiveChecked(r *Receiver, frames uint64, sleep func() error) error {
	for number := uint64(0); number < frames; {
		if err := await(r, sleep); err != nil {
			return err
		}
		for frame, kind, ok := r.Next(); ok; frame, kind, ok = r.Next() {
			if err := checkFrame(frame, kind, number); err != nil {
				return err
			}
			if number++; number%7 == 0 {
				r.Advance()
			}
		}
		r.Advance()
	}
	return nil
}
