package lane

import (
	"errors"
	"reflect"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// eachFigure calls f with every figure of Stats.
func eachFigure(v reflect.Value, f func(reflect.Value)) {
	if v.Kind() != reflect.Struct {
		f(v)
		return
	}
	for i := range v.NumField() {
		eachFigure(v.Field(i), f)
	}
}

// TestSumsOfStats: Plus, Since and Validate include all figures, and only Open is no counter.
func TestSumsOfStats(t *testing.T) {
	var a, b, sum, since Stats
	n := int64(0)
	for _, s := range []*Stats{&a, &b} {
		eachFigure(reflect.ValueOf(s).Elem(), func(v reflect.Value) { n++; v.SetInt(n) })
	}
	figures := n / 2
	i := int64(0)
	eachFigure(reflect.ValueOf(&sum).Elem(), func(v reflect.Value) { i++; v.SetInt(2*i + figures) })
	eachFigure(reflect.ValueOf(&since).Elem(), func(v reflect.Value) { v.SetInt(figures) })
	since.Open = b.Open
	if got := a.Plus(b); got != sum {
		t.Errorf("the sum is %+v, want %+v", got, sum)
	}
	if got := b.Since(a); got != since {
		t.Errorf("the difference is %+v, want %+v", got, since)
	}
	most := Stats{Spilt: maxCounted}
	if got := most.Plus(a).Spilt; got != maxCounted {
		t.Errorf("a sum above the maximum is %d", got)
	}
	eachFigure(reflect.ValueOf(&sum).Elem(), func(v reflect.Value) {
		was := v.Int()
		for _, bad := range []int64{-1, maxCounted + 1} {
			v.SetInt(bad)
			if err := sum.Validate(); !errors.Is(err, cudaipc.ErrInvalid) {
				t.Errorf("a figure of %d is no error: %v", bad, err)
			}
		}
		v.SetInt(was)
	})
	if err := sum.Validate(); err != nil {
		t.Error(err)
	}
}
