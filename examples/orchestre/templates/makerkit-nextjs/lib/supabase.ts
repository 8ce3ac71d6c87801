import { createServerClient } from "@supabase/ssr";
import { cookies } from "next/headers";

function setting(name: string): string {
  const value = process.env[name];
  if (!value) {
    throw new Error(`${name} is not set: copy .env.example to .env.local and fill it in`);
  }
  return value;
}

export async function serverClient() {
  const jar = await cookies();
  return createServerClient(setting("NEXT_PUBLIC_SUPABASE_URL"), setting("NEXT_PUBLIC_SUPABASE_ANON_KEY"), {
    cookies: {
      getAll: () => jar.getAll(),
      setAll: (all) => {
        try {
          all.forEach(({ name, value, options }) => jar.set(name, value, options));
        } catch {
          // A component cannot set cookies; an action does, and comes first when somebody signs in.
        }
      },
    },
  });
}

export async function currentUser() {
  const client = await serverClient();
  const { data } = await client.auth.getUser();
  return data.user;
}
