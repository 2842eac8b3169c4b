package replication

// Bugs are deliberate mistakes, one for each rule that the simulator must be able to see broken. They exist for
// tests of the simulator only: wiring never sets one.
type Bugs struct {
	CountFailedAcks    bool // rule 1: an answer that reports a failure counts as a success
	AckBeforeRecord    bool // rule 2: writes are acknowledged before the removal of a member is in the record
	NoDrain            bool // rule 8: a fence is answered while older I/O is still under way
	IgnoreIncarnation  bool // rule 11: a replica that restarted is taken back as if it had lost nothing
	DataBeforeLog      bool // rule 13: data is submitted before its region stands in the log
	ForgetOwnRecent    bool // rule 13: recent ranges are forgotten when this replica completed them
	RecordFromNow      bool // rule 16: a change record starts empty, without what was in flight
	CopyUnordered      bool // rule 17: writes do not wait for a copy of their blocks
	CatchUpNotDurable  bool // rule 17: catching up is kept in memory only
	SkipHoles          bool // rule 18: holes of the source are skipped at the target
	JoinWithoutSync    bool // rule 19: a joiner enters before its copy is flushed
	JoinWithoutWriters bool // rule 19: writes do not wait for the joiner while its entry is decided
}
