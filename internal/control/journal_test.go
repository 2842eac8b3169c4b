package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"samovar/internal/etcd/etcdtest"
	"samovar/internal/resource"
)

// Ids grow in the order of events, also if the clock is set back, and events keep it in the store.
func TestEventOrder(t *testing.T) {
	t.Parallel()
	memory := etcdtest.New()
	client := memory.Client()
	j := newJournal("n-1", client, quiet())
	j.last = time.Now().Add(time.Hour).UnixNano() // the clock was an hour ahead
	client.SetReachable(false)
	for i := range 20 {
		j.add(resource.Event{Object: "volume tea", Reason: "r", Text: fmt.Sprint(i)})
	}
	if keys := j.flush(t.Context()); len(keys) != 0 {
		t.Fatalf("written: %v", keys)
	}
	client.SetReachable(true)
	client.FailNextWrite(etcdtest.LostReply)
	first := j.flush(t.Context())
	if keys := j.flush(t.Context()); len(first) != 0 || len(keys) != 20 || !slices.IsSorted(keys) {
		t.Fatalf("written: %v, %v", first, keys)
	}
	all, err := client.List(t.Context(), "events/")
	check(t, err)
	for i, r := range all.Items {
		var e resource.Event
		check(t, decode(r.Key, r.Value, &e))
		if e.Text != fmt.Sprint(i) || e.Node != "n-1" || r.Key != "events/"+e.ID || nodeOfEvent(r.Key) != "n-1" {
			t.Fatalf("%d: %+v", i, e)
		}
	}
}

// Each node trims its own events, the oldest first, and nobody else's; while the store is away the queue is bounded.
func TestEventTrim(t *testing.T) {
	t.Parallel()
	client := etcdtest.New().Client()
	other := "events/0000000000000000001-x-n-000001"
	check(t, client.Put(t.Context(), other, encode(resource.Event{ID: "x"})).Err)
	j := newJournal("n", client, quiet())
	for i := range eventsQueued + 100 {
		j.add(resource.Event{Text: fmt.Sprint(i)})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go j.run(ctx)
	var texts []string
	await(t, "the last ones are there", func() bool {
		all, err := client.List(t.Context(), "events/")
		check(t, err)
		texts = nil
		for _, r := range all.Items {
			var e resource.Event
			check(t, decode(r.Key, r.Value, &e))
			texts = append(texts, e.Text)
		}
		return len(texts) == eventsKept+1 && texts[len(texts)-1] == fmt.Sprint(eventsQueued+99)
	})
	if texts[1] != fmt.Sprint(eventsQueued+100-eventsKept) {
		t.Fatalf("kept from %s", texts[1])
	}
	if own, ok := j.ownKeys(t.Context()); !ok || len(own) != eventsKept || slices.Contains(own, other) {
		t.Fatalf("%d own keys", len(own))
	}
}

// A follower gets each event once, also those of a node whose clock is behind, from where it was.
func TestFollow(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	a, b := c.nodes["a"], c.nodes["b"]
	ctx, stop := context.WithCancel(t.Context())
	events, err := a.Follow(ctx, "")
	check(t, err)
	a.event("cup", "one", "info", "")
	first := <-events
	late := resource.Event{ID: "0000000000000000001-b-000001", Object: "cup", Reason: "two"}
	check(t, b.store.Put(t.Context(), "events/"+late.ID, encode(late)).Err)
	second := <-events
	b.event("cup", "three", "info", "")
	third := <-events
	if first.Reason != "one" || second.Reason != "two" || third.Reason != "three" || third.Node != "b" {
		t.Fatalf("%+v %+v %+v", first, second, third)
	}
	since, err := a.Follow(ctx, first.ID)
	check(t, err)
	if e := <-since; e.Reason != "three" {
		t.Fatalf("%+v", e)
	}
	all, err := a.Events(t.Context(), first.ID, 10)
	if err != nil || len(all) != 1 || all[0].Reason != "three" {
		t.Fatalf("%+v %v", all, err)
	}
	newest, err := a.Events(t.Context(), "", 1)
	if err != nil || len(newest) != 1 || newest[0].Reason != "three" {
		t.Fatalf("%+v %v", newest, err)
	}
	stop()
	for _, ch := range []<-chan resource.Event{events, since} {
		if e, ok := <-ch; ok {
			t.Fatalf("%+v", e)
		}
	}
}

// What happens while a node ends is still told.
func TestLastEvents(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a")
	a, b := c.nodes["a"], c.nodes["b"]
	c.volume(a, "tea", testSize, "pa")
	_, err := a.Attach(t.Context(), "tea", resource.Attach{})
	check(t, err)
	a.end()
	await(t, "the detachment is told", func() bool { return slices.Contains(b.reasons("volume tea"), "detached") })
	await(t, "a node that ended in order is not online", func() bool {
		_, online := b.view.get("nodes/a")
		return !online
	})
	if cfg := b.record("tea"); cfg.Holder != "" {
		t.Fatalf("held by %s", cfg.Holder)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	var p progressMeter
	at := time.Unix(0, 0)
	if p.update(0, at) != nil {
		t.Fatal("progress of nothing")
	}
	p.update(100<<20, at)
	got := p.update(50<<20, at.Add(10*time.Second))
	if got.Todo != 100<<20 || got.Done != 50<<20 || got.Rate != 5<<20 || got.Left != "10s" {
		t.Fatalf("%+v", got)
	}
	if got = p.update(120<<20, at.Add(20*time.Second)); got.Todo != 120<<20 || got.Done != 0 || got.Left != "" {
		t.Fatalf("%+v", got)
	}
	if p.update(0, at) != nil || p.running {
		t.Fatal("not over")
	}
}

// Every node tells the same of nodes, pools and a degraded volume that is being attended to.
func TestPresented(t *testing.T) {
	t.Parallel()
	c := testCluster(t, "a", "b")
	c.pools("a", "b")
	degraded(t, c, "tea")
	a := c.nodes["a"]
	s, err := a.Status(t.Context())
	check(t, err)
	if s.Healthy || s.Nodes != 2 || s.Online != 1 || s.Pools != 2 || s.Volumes != 1 || s.Degraded != 1 {
		t.Fatalf("%+v", s)
	}
	text := strings.Join(s.Problems, "\n")
	for _, want := range []string{"node b is not online", "pool pb: node b is not online", "volume tea is not redundant"} {
		if !strings.Contains(text, want) {
			t.Fatalf("%q is not in %s", want, text)
		}
	}
	v, err := a.Volume(t.Context(), "tea")
	check(t, err)
	for _, r := range v.Replicas {
		if want := map[string]string{"pa": "in-sync", "pb": "absent"}[r.Pool]; r.State != want {
			t.Fatalf("%+v", r)
		}
	}
	n, err := a.Node(t.Context(), "b")
	if err != nil || n.Online || n.Cause == "" || !slices.Equal(n.Pools, []string{"pb"}) {
		t.Fatalf("%+v %v", n, err)
	}
	// A record that this version cannot read breaks nothing else.
	check(t, a.store.Put(t.Context(), "volumes/00000000000000000000000000000001", []byte(`{"name":"odd","groups":[]}`)).Err)
	check(t, a.store.Put(t.Context(), "volumes/00000000000000000000000000000002", []byte(`damaged`)).Err)
	await(t, "tea and the odd one are listed", func() bool {
		all, err := a.Volumes(t.Context())
		return err == nil && len(all) == 2
	})
}
