package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"samovar/internal/bitmap"
	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication"
	"samovar/internal/volume"
)

var rewrite = flag.Bool("rewrite", false, "write the golden bytes again")

const goldenFile = "testdata/version1.txt"

func oneBlock(n uint64) *bitmap.Bitmap {
	b := &bitmap.Bitmap{}
	b.Add(n, n+1)
	return b
}

func filled(pool *block.Pool, n int, c byte) *block.Buffer {
	b := pool.Get(n)
	copy(b.Bytes(), bytes.Repeat([]byte{c}, n))
	return b
}

func goldenConfiguration() volume.Configuration {
	return volume.Configuration{
		Volume: volume.ID{1, 2, 3}, Name: "tea", Size: 1 << 30, Layout: volume.Mirrored(1<<30, 64<<20),
		Groups: []volume.Group{{Members: []volume.Member{
			{Pool: volume.PoolID{4, 5, 6}, InSync: true},
			{Pool: volume.PoolID{7}, Last: 3, LastID: volume.GenerationID{9}},
		}}},
		Protocol: "C", Epoch: 7, Engine: volume.EngineID{8}, Generation: 4, GenerationID: volume.GenerationID{10},
		Holder: "node1", Mode: "explicit", Revision: 77,
	}
}

// goldenMessages has one or more messages of every kind, each with what that kind carries.
func goldenMessages(pool *block.Pool) []replication.Message {
	c := goldenConfiguration()
	fence := volume.Fence{Epoch: 7, Engine: volume.EngineID{8}}
	x := volume.Range{Offset: 8192, Length: 16}
	list := []replication.Message{
		{Kind: replication.Hello, Full: true, Fence: fence, Configuration: &c, Stamp: 5},
		{Kind: replication.Welcome, Fence: fence, Credit: 1 << 20, Knowledge: &replication.Knowledge{
			Incarnation: volume.Incarnation{11}, Accepted: c, Prepared: 5, PreparedID: volume.GenerationID{12},
			History: []volume.GenerationID{{10}, {9}}, Broken: true, Doubt: []volume.Range{x, {Offset: 1 << 20, Length: 1 << 20}},
			CatchingUp: true, Base: 2, BaseID: volume.GenerationID{13}, Missing: oneBlock(3),
			Records: []volume.ChangeRecord{{Pool: volume.PoolID{7}, Start: 3, Blocks: oneBlock(300)}}, Size: 1 << 30}},
		{Kind: replication.Refuse, Status: fault.Fenced, Fence: volume.Fence{Epoch: 9, Engine: volume.EngineID{14}}, Text: "a newer engine"},
		{Kind: replication.Write, ID: 1, Range: x, FUA: true, Payload: filled(pool, 16, 'w')},
		{Kind: replication.Zero, ID: 2, Completed: 1, Range: x, Punch: true},
		{Kind: replication.Read, ID: 3, Completed: 2, Flushed: 1, Range: x},
		{Kind: replication.Sync, ID: 4, Completed: 3, Flushed: 1},
		{Kind: replication.Ack, ID: 3, Range: x, Credit: 4096, Payload: filled(pool, 16, 'r')},
		{Kind: replication.Ack, ID: 2, Status: fault.NoSpace},
		{Kind: replication.Ping, Stamp: 123456789},
		{Kind: replication.Pong, Stamp: 123456789, Credit: 4096},
		{Kind: replication.Reserve, ID: 5, Range: x},
		{Kind: replication.Prepare, ID: 6, Generation: 5, GenerationID: volume.GenerationID{12}, Configuration: &c},
		{Kind: replication.Accept, ID: 7, Configuration: &c},
		{Kind: replication.CatchUp, ID: 8, Bitmap: oneBlock(1000)},
		{Kind: replication.Records, ID: 9, Record: &volume.ChangeRecord{Pool: volume.PoolID{7}, Start: 3, Blocks: oneBlock(2)}},
		{Kind: replication.Settled, ID: 10},
		{Kind: replication.Copy, ID: 11, Range: x, Source: volume.PoolID{7}},
		{Kind: replication.Cancel, ID: 12, Target: 11},
		{Kind: replication.Fetch, ID: 1, Range: x, Fence: fence},
		{Kind: replication.Fetched, ID: 1, Range: x, Payload: &Segments{List: []Segment{
			{Range: volume.Range{Offset: 8192, Length: 4}},
			{Range: volume.Range{Offset: 8196, Length: 8}, Data: filled(pool, 8, 'd')},
			{Range: volume.Range{Offset: 8204, Length: 4}},
		}}},
		{Kind: replication.NeedSync},
	}
	for i := range list {
		from, _ := pair(list[i].Kind)
		list[i].Volume, list[i].Pool = from.Volume, from.Pool
	}
	return list
}

// The bytes of version 1 never change: what is written today is what was written then, and the old bytes are
// still read. "go test ./internal/wire -run Golden -rewrite" writes them again, for a new version only.
func TestGolden(t *testing.T) {
	pool := block.NewPool()
	messages := goldenMessages(pool)
	var text strings.Builder
	fmt.Fprintf(&text, "Preamble of an engine\n%s\n", hex.Dump(testPreamble(t, Engine, "dialer").Append(nil)))
	for _, m := range messages {
		from, _ := pair(m.Kind)
		fmt.Fprintf(&text, "%s\n%s\n", rules[m.Kind].name, hex.Dump(encode(t, from, m)))
	}
	if *rewrite {
		if err := os.WriteFile(goldenFile, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(string(golden), "\n\n")
	got := strings.Split(text.String(), "\n\n")
	if len(want) != len(got) {
		t.Fatalf("%d golden entries, want %d", len(want), len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("the bytes changed: now\n%s\nbefore\n%s", got[i], want[i])
		}
	}
	seen := map[replication.Kind]bool{}
	for i, m := range messages {
		seen[m.Kind] = true
		_, to := pair(m.Kind)
		batch, err := NewDecoder(bytes.NewReader(undump(t, want[i+1])), pool, to).Next()
		if err != nil || len(batch) != 1 || !sameMessage(batch[0], m) {
			t.Errorf("golden %s: %v, %+v", rules[m.Kind].name, err, batch)
		}
	}
	if len(seen) != len(allKinds()) {
		t.Errorf("%d of %d kinds have golden bytes", len(seen), len(allKinds()))
	}
}

// undump reads the bytes of a hex dump with a title.
func undump(t *testing.T, text string) (b []byte) {
	for _, line := range strings.Split(text, "\n")[1:] {
		if len(line) < 60 {
			continue
		}
		row, err := hex.DecodeString(strings.ReplaceAll(line[8:60], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, row...)
	}
	return b
}
