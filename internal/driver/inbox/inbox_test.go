package inbox

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// Many put, one takes: nothing is lost, each one's order is kept, and no wake-up is missed.
func TestManyPut(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 2000
	b := New[[2]int]()
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				if i%3 == 0 {
					b.Put() // nothing
				}
				if !b.Put([2]int{w, i}) {
					t.Error("refused")
				}
			}
		})
	}
	var next [writers]int
	var events [][2]int
	for got := 0; got < writers*each; {
		select {
		case <-b.Wake():
		case <-time.After(20 * time.Second):
			t.Fatalf("asleep after %d", got)
		}
		events = b.Take(events)
		for _, e := range events {
			if e[1] != next[e[0]] {
				t.Fatalf("writer %d: %d instead of %d", e[0], e[1], next[e[0]])
			}
			next[e[0]]++
		}
		got += len(events)
	}
	group.Wait()
}

func TestClose(t *testing.T) {
	t.Parallel()
	b := New[int]()
	b.Put(1, 2)
	if left := b.Close(); !slices.Equal(left, []int{1, 2}) {
		t.Fatal(left)
	}
	if b.Put(3) || len(b.Close()) != 0 || len(b.Take(nil)) != 0 {
		t.Fatal("it takes more")
	}
}
