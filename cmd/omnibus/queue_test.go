package main

import (
	"context"
	"fmt"
	"os"

	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
)

// tokensMain is a program that joins the queue "words", puts and gets the first of its
// arguments, and puts the others.
func tokensMain() {
	if err := tokens(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tokens(ctx context.Context, rids []string) error {
	q, err := tensorqueue.Join(ctx, tensorqueue.Options{Name: "words"})
	if err != nil {
		return err
	}
	for i, rid := range rids {
		if err := q.Put(ctx, rid, "", map[string]any{"n": i}, tensorqueue.PutOptions{}); err != nil {
			return err
		}
		if i > 0 {
			fmt.Printf("put %s\n", rid)
			continue
		}
		it, err := q.Get(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("put %s, got %s\n", rid, it.RID)
		if err := it.Close(); err != nil {
			return err
		}
	}
	return q.Close(ctx)
}
