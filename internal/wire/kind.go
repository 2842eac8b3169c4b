package wire

import (
	"fmt"

	"samovar/internal/replication"
	"samovar/internal/volume"
)

// payloadForm is what may follow the body.
type payloadForm uint8

const (
	noPayload      payloadForm = iota
	wholeRange                 // a Buffer of exactly the bytes of the range, always
	someBytes                  // a Buffer, or nothing; may travel as a table, so that holes are not sent
	segmentPayload             // Segments, or nothing; always travels as a table
)

// rule is what the wire knows of a kind, so that a receiver's state machine never meets a message without the
// parts it looks at.
type rule struct {
	name     string
	from     Purpose // who may send it
	payload  payloadForm
	needs    fieldSet // fields without which it is refused
	names    bool     // volume and pool are in its body
	opens    bool     // may be the first frame of a session; its fence is the session's
	maxRange uint64   // bytes
}

const identity = 1<<fieldVolume | 1<<fieldPool

// rules is indexed by replication.Kind and constant.
var rules = [...]rule{
	replication.Hello: {name: "Hello", from: Engine, needs: identity | 1<<fieldFence, names: true, opens: true},
	replication.Welcome: {name: "Welcome", from: Replica, needs: identity | 1<<fieldKnowledge,
		names: true},
	replication.Refuse:  {name: "Refuse", from: Replica, needs: identity, names: true},
	replication.Write:   {name: "Write", from: Engine, payload: wholeRange, maxRange: volume.MaxRequest},
	replication.Zero:    {name: "Zero", from: Engine, maxRange: volume.MaxRequest},
	replication.Read:    {name: "Read", from: Engine, maxRange: volume.MaxRequest},
	replication.Sync:    {name: "Sync", from: Engine},
	replication.Ack:     {name: "Ack", from: Replica, payload: someBytes},
	replication.Ping:    {name: "Ping", from: Engine},
	replication.Pong:    {name: "Pong", from: Replica},
	replication.Reserve: {name: "Reserve", from: Engine},
	replication.Prepare: {name: "Prepare", from: Engine, needs: 1 << fieldConfiguration},
	replication.Accept:  {name: "Accept", from: Engine, needs: 1 << fieldConfiguration},
	replication.CatchUp: {name: "CatchUp", from: Engine, needs: 1 << fieldBitmap},
	replication.Records: {name: "Records", from: Engine, needs: 1 << fieldRecord},
	replication.Settled: {name: "Settled", from: Engine},
	replication.Copy:    {name: "Copy", from: Engine, needs: 1 << fieldSource, maxRange: volume.MaxRequest},
	replication.Cancel:  {name: "Cancel", from: Engine},
	replication.Fetch: {name: "Fetch", from: Copier, needs: identity | 1<<fieldFence, names: true, opens: true,
		maxRange: volume.MaxRequest},
	replication.Fetched:  {name: "Fetched", from: Replica, payload: segmentPayload},
	replication.NeedSync: {name: "NeedSync", from: Replica},
}

// ruleOf finds the rule of a kind, or nil.
func ruleOf(k replication.Kind) *rule {
	if int(k) >= len(rules) || rules[k].name == "" {
		return nil
	}
	return &rules[k]
}

// lacks says which fields that the kind needs are not in m, or "".
func (r *rule) lacks(m *replication.Message) string {
	switch {
	case r.needs&(1<<fieldFence) != 0 && m.Fence == (volume.Fence{}):
		return "no fence"
	case r.needs&(1<<fieldSource) != 0 && m.Source == (volume.PoolID{}):
		return "no source"
	case r.needs&(1<<fieldConfiguration) != 0 && m.Configuration == nil:
		return "no configuration"
	case r.needs&(1<<fieldBitmap) != 0 && m.Bitmap == nil:
		return "no bitmap"
	case r.needs&(1<<fieldRecord) != 0 && m.Record == nil:
		return "no change record"
	case r.needs&(1<<fieldKnowledge) != 0 && m.Knowledge == nil:
		return "no knowledge"
	}
	return ""
}

// limit is the longest range of the kind.
func (r *rule) limit() uint64 {
	if r.maxRange == 0 {
		return volume.MaxSize
	}
	return r.maxRange
}

// validRange tells in words what is wrong with a range, or "".
func (r *rule) validRange(x volume.Range) string {
	if x.Offset > volume.MaxSize || x.Length > r.limit() || x.Offset+x.Length > volume.MaxSize {
		return fmt.Sprintf("%s has offset %d and length %d, beyond %d and %d", r.name, x.Offset, x.Length,
			uint64(volume.MaxSize), r.limit())
	}
	return ""
}
