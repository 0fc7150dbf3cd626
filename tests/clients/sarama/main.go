// sarama behind the line protocol. It has no properties of its own: the options are code.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
	"turnout.tests/protocol"
)

type session struct {
	addresses []string
	base      func() *sarama.Config
	client    sarama.Client
	admin     sarama.ClusterAdmin
}

// names of the errors that tests look for; sarama has only texts.
var names = map[sarama.KError]string{
	sarama.ErrUnknownTopicOrPartition:            "UNKNOWN_TOPIC_OR_PARTITION",
	sarama.ErrTopicAuthorizationFailed:           "TOPIC_AUTHORIZATION_FAILED",
	sarama.ErrGroupAuthorizationFailed:           "GROUP_AUTHORIZATION_FAILED",
	sarama.ErrClusterAuthorizationFailed:         "CLUSTER_AUTHORIZATION_FAILED",
	sarama.ErrTransactionalIDAuthorizationFailed: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
	sarama.ErrTopicAlreadyExists:                 "TOPIC_ALREADY_EXISTS",
	sarama.ErrMessageSizeTooLarge:                "MESSAGE_TOO_LARGE",
	sarama.ErrSASLAuthenticationFailed:           "SASL_AUTHENTICATION_FAILED",
	sarama.ErrNotLeaderForPartition:              "NOT_LEADER_OR_FOLLOWER",
	sarama.ErrInvalidReplicationFactor:           "INVALID_REPLICATION_FACTOR",
}

func describe(err error) protocol.Failure {
	failure := protocol.Failure{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	var several sarama.ProducerErrors
	if errors.As(err, &several) && len(several) > 0 {
		err = several[0].Err
	}
	var topic *sarama.TopicError
	if errors.As(err, &topic) {
		err = topic.Err
	}
	var kafka sarama.KError
	if errors.As(err, &kafka) {
		name, known := names[kafka]
		if !known {
			name = fmt.Sprintf("CODE_%d", int16(kafka))
		}
		failure.Class, failure.Kafka = "sarama.KError", &name
	}
	return failure
}

type scramClient struct {
	generator    scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (x *scramClient) Begin(user, password, authzid string) error {
	client, err := x.generator.NewClient(user, password, authzid)
	if err == nil {
		x.conversation = client.NewConversation()
	}
	return err
}

func (x *scramClient) Step(challenge string) (string, error) { return x.conversation.Step(challenge) }
func (x *scramClient) Done() bool                            { return x.conversation.Done() }

func (s *session) connect(c *protocol.Command) (any, error) {
	s.close(c)
	s.addresses = strings.Split(c.Bootstrap, ",")
	var roots *x509.CertPool
	if c.TLSCA != "" {
		pem, err := os.ReadFile(c.TLSCA)
		if err != nil {
			return nil, err
		}
		roots = x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
	}
	id, auth := c.ClientID, c.Sasl
	s.base = func() *sarama.Config {
		config := sarama.NewConfig()
		config.Version = sarama.MaxVersion
		config.ClientID = id
		config.Net.DialTimeout = 10 * time.Second
		config.Net.ReadTimeout = 30 * time.Second
		if roots != nil {
			config.Net.TLS.Enable = true
			config.Net.TLS.Config = &tls.Config{RootCAs: roots}
		}
		if auth != nil {
			config.Net.SASL.Enable = true
			config.Net.SASL.User, config.Net.SASL.Password = auth.Username, auth.Password
			config.Net.SASL.Mechanism = sarama.SASLMechanism(auth.Mechanism)
			hashes := map[string]func() hash.Hash{"SCRAM-SHA-256": sha256.New, "SCRAM-SHA-512": sha512.New}
			if generator, isScram := hashes[auth.Mechanism]; isScram {
				config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
					return &scramClient{generator: scram.HashGeneratorFcn(generator)}
				}
			}
		}
		return config
	}
	return nil, nil
}

// open dials at the first use, so that a failure is that of the operation.
func (s *session) open() error {
	if s.client != nil {
		return nil
	}
	if s.base == nil {
		return errors.New("not connected")
	}
	client, err := sarama.NewClient(s.addresses, s.base())
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		client.Close()
		return err
	}
	s.client, s.admin = client, admin
	return nil
}

func (s *session) metadata(c *protocol.Command) (any, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	wanted, err := c.Names()
	if err != nil {
		return nil, err
	}
	if err := s.client.RefreshMetadata(wanted...); err != nil {
		return nil, err
	}
	brokers, controller, err := s.admin.DescribeCluster()
	if err != nil {
		return nil, err
	}
	result := protocol.Metadata{Controller: &controller, Topics: map[string]map[string]protocol.Partition{}}
	for _, b := range brokers {
		host, port, err := net.SplitHostPort(b.Addr())
		if err != nil {
			return nil, err
		}
		number, _ := strconv.Atoi(port)
		result.Brokers = append(result.Brokers, protocol.Broker{ID: b.ID(), Host: host, Port: int32(number)})
		result.Addresses = append(result.Addresses, b.Addr())
	}
	// What Metadata said may differ from what DescribeCluster says: both count.
	for _, b := range s.client.Brokers() {
		result.Addresses = append(result.Addresses, b.Addr())
	}
	slices.SortFunc(result.Brokers, func(a, b protocol.Broker) int { return int(a.ID - b.ID) })
	topics, err := s.admin.DescribeTopics(wanted)
	if err != nil {
		return nil, err
	}
	for _, topic := range topics {
		partitions := map[string]protocol.Partition{}
		for _, p := range topic.Partitions {
			slices.Sort(p.Isr)
			partitions[strconv.Itoa(int(p.ID))] = protocol.Partition{Leader: p.Leader, Replicas: p.Replicas, Isr: p.Isr}
		}
		result.Topics[topic.Name] = partitions
	}
	return result, nil
}

func (s *session) createTopics(c *protocol.Command) (any, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	topics, err := c.NewTopics()
	for _, t := range topics {
		configs := map[string]*string{}
		for key, value := range t.Configs {
			configs[key] = &value
		}
		detail := &sarama.TopicDetail{NumPartitions: t.Partitions, ReplicationFactor: t.Replication, ConfigEntries: configs}
		if err := s.admin.CreateTopic(t.Name, detail, false); err != nil {
			return nil, err
		}
	}
	return nil, err
}

func (s *session) deleteTopics(c *protocol.Command) (any, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	wanted, err := c.Names()
	for _, name := range wanted {
		if err := s.admin.DeleteTopic(name); err != nil {
			return nil, err
		}
	}
	return nil, err
}

func (s *session) producerConfig(c *protocol.Command) *sarama.Config {
	config := s.base()
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Producer.Retry.Max = 100
	config.Producer.MaxMessageBytes = max(1_000_000, c.Size+100_000)
	sarama.MaxRequestSize = max(sarama.MaxRequestSize, int32(min(1<<30, c.Size+200_000)))
	config.Producer.RequiredAcks = map[string]sarama.RequiredAcks{
		"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll, "": sarama.WaitForAll,
	}[c.Acks]
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[c.Codec]
	if c.Idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	return config
}

func send(producer sarama.AsyncProducer, c *protocol.Command, begin int64, written *protocol.Written) error {
	headers := []sarama.RecordHeader{}
	for key, value := range c.Headers {
		headers = append(headers, sarama.RecordHeader{Key: []byte(key), Value: []byte(value)})
	}
	var failure error
	var settled sync.WaitGroup
	settled.Add(1)
	go func() {
		defer settled.Done()
		for range c.Count {
			select {
			case message := <-producer.Successes():
				offset := message.Offset
				if c.Acks == "0" {
					offset = -1
				}
				written.Add(message.Partition, offset)
			case failed := <-producer.Errors():
				// The first tells why; later ones may only say that a circuit breaker is open.
				if failure == nil {
					failure = failed.Err
				}
			}
		}
	}()
	err := c.Records(begin, func(r protocol.Record) error {
		producer.Input() <- &sarama.ProducerMessage{
			Topic: c.Topic, Partition: r.Partition, Key: sarama.ByteEncoder(r.Key), Value: sarama.ByteEncoder(r.Value),
			Headers: headers,
		}
		return nil
	})
	settled.Wait()
	if failure != nil {
		return failure
	}
	return err
}

func (s *session) produce(c *protocol.Command) (any, error) {
	producer, err := sarama.NewAsyncProducer(s.addresses, s.producerConfig(c))
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	written := &protocol.Written{}
	return written, send(producer, c, 0, written)
}

func (s *session) transaction(c *protocol.Command) (any, error) {
	c.Idempotent, c.Acks = true, "all"
	config := s.producerConfig(c)
	config.Producer.Transaction.ID = c.TransactionalID
	producer, err := sarama.NewAsyncProducer(s.addresses, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	written := &protocol.Written{Outcomes: c.Outcomes}
	for index, outcome := range c.Outcomes {
		if err := producer.BeginTxn(); err != nil {
			return nil, err
		}
		if err := send(producer, c, int64(index)*c.Count, written); err != nil {
			return nil, err
		}
		end := producer.CommitTxn
		if outcome != "commit" {
			end = producer.AbortTxn
		}
		if err := end(); err != nil {
			return nil, err
		}
	}
	return written, nil
}

// reading is a consumer group's handler that stops the session when enough was read.
type reading struct {
	lock   sync.Mutex
	read   *protocol.Read
	wanted int64
	commit bool
	done   context.CancelFunc
}

func (r *reading) take(m *sarama.ConsumerMessage) (more bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.read.Count < r.wanted {
		r.read.Add(m.Partition, m.Offset, m.Key, m.Value)
	}
	if r.read.Count >= r.wanted {
		r.done()
		return false
	}
	return true
}

func (r *reading) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reading) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reading) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			more := r.take(message)
			if r.commit {
				session.MarkMessage(message, "")
			}
			if !more {
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (s *session) consume(c *protocol.Command) (any, error) {
	config := s.base()
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.AutoCommit.Enable = c.Commit
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	if c.From == "latest" {
		config.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	if c.Isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	ctx, cancel := context.WithDeadline(context.Background(), c.Deadline())
	defer cancel()
	r := &reading{read: protocol.NewRead(), wanted: c.Count, commit: c.Commit, done: cancel}
	if c.Mode == "assign" {
		return r.read, s.assign(ctx, c, config, r)
	}
	group, err := sarama.NewConsumerGroup(s.addresses, c.Group, config)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	var failure error
	go func() {
		for err := range group.Errors() {
			r.lock.Lock()
			failure = err
			r.lock.Unlock()
		}
	}()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{c.Topic}, r); err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	// An error that was overcome is none.
	if r.read.Count == 0 && failure != nil {
		return nil, failure
	}
	return r.read, nil
}

func (s *session) assign(ctx context.Context, c *protocol.Command, config *sarama.Config, r *reading) error {
	consumer, err := sarama.NewConsumer(s.addresses, config)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partitions, err := consumer.Partitions(c.Topic)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, id := range partitions {
		partition, err := consumer.ConsumePartition(c.Topic, id, config.Consumer.Offsets.Initial)
		if err != nil {
			return err
		}
		all.Go(func() {
			defer partition.Close()
			for {
				select {
				case message := <-partition.Messages():
					if !r.take(message) {
						return
					}
				case <-partition.Errors():
				case <-ctx.Done():
					return
				}
			}
		})
	}
	all.Wait()
	return nil
}

func (s *session) commit(c *protocol.Command) (any, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	manager, err := sarama.NewOffsetManagerFromClient(c.Group, s.client)
	if err != nil {
		return nil, err
	}
	defer manager.Close()
	for name, offset := range c.Offsets {
		number, err := strconv.Atoi(name)
		if err != nil {
			return nil, err
		}
		partition, err := manager.ManagePartition(c.Topic, int32(number))
		if err != nil {
			return nil, err
		}
		// Mark only moves forward, reset only back; one of the two applies.
		partition.MarkOffset(offset, "")
		partition.ResetOffset(offset, "")
		defer partition.AsyncClose()
	}
	manager.Commit()
	return nil, nil
}

func (s *session) partitions(c *protocol.Command) ([]int32, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	if err := s.client.RefreshMetadata(c.Topic); err != nil {
		return nil, err
	}
	return s.client.Partitions(c.Topic)
}

func (s *session) committed(c *protocol.Command) (any, error) {
	partitions, err := s.partitions(c)
	if err != nil {
		return nil, err
	}
	found, err := s.admin.ListConsumerGroupOffsets(c.Group, map[string][]int32{c.Topic: partitions})
	if err != nil {
		return nil, err
	}
	result := protocol.Offsets{Offsets: map[string]int64{}}
	for _, id := range partitions {
		if block := found.GetBlock(c.Topic, id); block != nil && block.Offset >= 0 {
			result.Offsets[strconv.Itoa(int(id))] = block.Offset
		}
	}
	return result, nil
}

func (s *session) listOffsets(c *protocol.Command) (any, error) {
	partitions, err := s.partitions(c)
	if err != nil {
		return nil, err
	}
	at := sarama.OffsetNewest
	if c.At == "earliest" {
		at = sarama.OffsetOldest
	}
	result := protocol.Offsets{Offsets: map[string]int64{}}
	for _, id := range partitions {
		offset, err := s.client.GetOffset(c.Topic, id, at)
		if err != nil {
			return nil, err
		}
		result.Offsets[strconv.Itoa(int(id))] = offset
	}
	return result, nil
}

func (s *session) close(*protocol.Command) (any, error) {
	if s.admin != nil {
		// Closes the client too.
		s.admin.Close()
		s.client, s.admin = nil, nil
	}
	return nil, nil
}

func main() {
	s := &session{}
	protocol.Serve("sarama", "1.61.1", protocol.Handlers{
		"connect": s.connect, "metadata": s.metadata, "create_topics": s.createTopics, "delete_topics": s.deleteTopics,
		"produce": s.produce, "transaction": s.transaction, "consume": s.consume, "commit": s.commit,
		"committed": s.committed, "list_offsets": s.listOffsets, "close": s.close,
	}, describe)
}
