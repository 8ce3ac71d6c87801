-- One account for each customer, its members, and the rule that nobody sees another's.
create table accounts (
  id uuid primary key default gen_random_uuid(),
  name text not null check (length(name) between 1 and 200),
  created_at timestamptz not null default now()
);

create table members (
  account_id uuid not null references accounts (id) on delete cascade,
  user_id uuid not null references auth.users (id) on delete cascade,
  role text not null default 'member' check (role in ('owner', 'member')),
  primary key (account_id, user_id)
);

alter table accounts enable row level security;
alter table members enable row level security;

create policy "members see their own rows" on members
  for select using (user_id = auth.uid());

create policy "members see their account" on accounts
  for select using (exists (
    select 1 from members where members.account_id = accounts.id and members.user_id = auth.uid()
  ));
